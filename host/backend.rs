//! Where a call on host memory runs: the CPU, or a CUDA device. Both give the same bits.

use crate::cpu;
use crate::cuda::{self, Gdn, Kernels, Stream};
use crate::error::{Error, Result};
use crate::gdn::{Forward, ForwardPlan, HeadMap, Heads, OutNorm, Recurrence, Request, Switches, Variant};
use crate::topk::{self, BLOCK_CELLS, Scores, Topk, TopkShape, WIDTH};

/// A place to run on. For calls on device memory and an engine's own stream see [`cuda::Gdn`].
#[derive(Debug)]
pub struct Backend {
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Cpu(Cpu),
    Cuda(Box<Cuda>),
}

#[derive(Debug)]
struct Cpu {
    isa: cpu::Isa,
    topk: topk::Switches,
}

#[derive(Debug)]
struct Cuda {
    gdn: Gdn,
    topk: cuda::Topk,
    stream: Stream,
}

impl Backend {
    /// All cores of the CPU. Errors: `Argument` when `KEYHEAD_CPU` names no instruction set, `Variant` when this CPU lacks it or a
    /// switch in the environment forces a GPU kernel, `Threads` when the system gives none.
    pub fn cpu() -> Result<Backend> {
        if let Some((variant, switch)) = Switches::from_env().forced()? {
            let reason = format!("{switch} asks for it, and the CPU backend has no variants");
            return Err(Error::Variant { variant: variant.to_string(), reason });
        }
        // An error without a source says that the program has set up its threads already.
        if let Err(source) = rayon::ThreadPoolBuilder::new().build_global()
            && std::error::Error::source(&source).is_some()
        {
            return Err(Error::Threads { source });
        }
        let cpu = Cpu { isa: cpu::Isa::chosen()?, topk: topk::Switches::from_env() };
        Ok(Backend { kind: Kind::Cpu(cpu) })
    }

    /// CUDA device `ordinal`, counted from 0. Errors: `NoDriver`, `NoDevice`, `ComputeCapability`, `DriverTooOld`, `Jit`, or the
    /// driver's own.
    pub fn cuda(ordinal: usize) -> Result<Backend> {
        let device = cuda::Device::open(ordinal)?;
        let stream = Stream::new(&device)?;
        let kernels = Kernels::load(&device)?;
        let (gdn, topk) = (Gdn::with(&kernels), cuda::Topk::new(&kernels));
        Ok(Backend { kind: Kind::Cuda(Box::new(Cuda { gdn, topk, stream })) })
    }

    /// CUDA device 0 where it can be used, else the CPU; with a line that says which, and why. Errors: those of [`Backend::cpu`].
    pub fn auto() -> Result<(Backend, String)> {
        match Backend::cuda(0) {
            Ok(backend) => {
                let line = backend.describe();
                Ok((backend, line))
            }
            Err(why) => {
                let backend = Backend::cpu()?;
                let line = format!("{}, because: {why}", backend.describe());
                Ok((backend, line))
            }
        }
    }

    /// A line for people: `cpu (avx512, 2 threads)`, `cuda:0 (NVIDIA H200)`.
    pub fn describe(&self) -> String {
        match &self.kind {
            Kind::Cpu(Cpu { isa, .. }) => {
                format!("cpu ({}, {} threads)", isa.name(), rayon::current_num_threads())
            }
            Kind::Cuda(cuda) => {
                let facts = cuda.gdn.device().facts();
                format!("cuda:{} ({})", facts.ordinal, facts.name)
            }
        }
    }

    /// The GDN kernels, where this is a CUDA device.
    pub fn gdn(&self) -> Option<&Gdn> {
        match &self.kind {
            Kind::Cpu(_) => None,
            Kind::Cuda(cuda) => Some(&cuda.gdn),
        }
    }

    /// Runs the recurrence and returns what ran, and why. `variant` names a GPU kernel; `None` lets the plan choose.
    ///
    /// Errors: `Variant` when the one asked for cannot run here, `HostMemory`, `DeviceMemory`, or the driver's own; the state is
    /// then what it was.
    pub fn recurrence(&self, call: Recurrence<'_>, variant: Option<Variant>) -> Result<String> {
        match &self.kind {
            Kind::Cpu(Cpu { isa, .. }) => {
                no_variant(variant)?;
                cpu::recurrence_with(*isa, call)?;
                Ok(format!("cpu/{}", isa.name()))
            }
            Kind::Cuda(cuda) => {
                let plan = cuda.gdn.recurrence_host(&cuda.stream, call, variant)?;
                Ok(format!("{}: {}", plan.variant, plan.reason))
            }
        }
    }

    /// Runs the whole path and returns what ran, and why. `variant` names a GPU kernel; `None` lets the plan choose.
    ///
    /// Errors: `Variant` when the one asked for cannot run here, `HostMemory`, `DeviceMemory`, or the driver's own; what the call
    /// carries is then what it was.
    pub fn forward(
        &self,
        call: Forward<'_>,
        workspace: &mut cpu::Workspace,
        variant: Option<Variant>,
    ) -> Result<String> {
        match &self.kind {
            Kind::Cpu(Cpu { isa, .. }) => {
                no_variant(variant)?;
                cpu::forward_with(*isa, call, workspace)?;
                Ok(format!("cpu/{}", isa.name()))
            }
            Kind::Cuda(cuda) => Ok(cuda.gdn.forward_host(&cuda.stream, call, variant)?.to_string()),
        }
    }

    /// Runs the out norm. Errors: `DeviceMemory`, or the driver's own.
    pub fn out_norm(&self, call: OutNorm<'_>) -> Result<()> {
        match &self.kind {
            Kind::Cpu(Cpu { isa, .. }) => cpu::out_norm_with(*isa, call),
            Kind::Cuda(cuda) => cuda.gdn.out_norm_host(&cuda.stream, call),
        }
    }

    /// Selects blocks and returns what ran, and why. `kernel` names a GPU kernel; `None` lets the plan choose.
    ///
    /// Errors: `Variant` when the one asked for cannot run here, `HostMemory`, `DeviceMemory`, or the driver's own.
    pub fn topk(&self, call: Topk<'_>, kernel: Option<topk::Kernel>) -> Result<String> {
        match &self.kind {
            Kind::Cpu(Cpu { isa, topk }) => {
                let forced = match kernel {
                    Some(kernel) => Some((kernel, "the caller")),
                    None => topk.forced()?,
                };
                if let Some((kernel, who)) = forced {
                    let reason = format!("{who} asks for it, and the CPU backend has no kernels");
                    return Err(Error::Variant { variant: kernel.to_string(), reason });
                }
                cpu::topk_with(*isa, call)?;
                Ok(format!("cpu/{}", isa.name()))
            }
            Kind::Cuda(cuda) => {
                let plan = cuda.topk.topk_host(&cuda.stream, call, kernel)?;
                Ok(format!("{}: {}", plan.kernel, plan.reason))
            }
        }
    }

    /// Computes the scores of blocks. Errors: `DeviceMemory`, or the driver's own.
    pub fn scores(&self, call: Scores<'_>) -> Result<()> {
        match &self.kind {
            Kind::Cpu(Cpu { isa, .. }) => cpu::scores_with(*isa, call),
            Kind::Cuda(cuda) => cuda.topk.scores_host(&cuda.stream, call),
        }
    }

    /// For calls of the shapes of published models, what runs here and why.
    pub fn plan_lines(&self) -> Vec<String> {
        match &self.kind {
            Kind::Cpu(Cpu { isa, .. }) => {
                ["forward", "topk", "scores"].map(|call| format!("{call}: {isa}")).into()
            }
            Kind::Cuda(cuda) => {
                let forward = ForwardPlan::lines(&cuda.forward_plans());
                let scores = "scores: the only kernel of this step".into();
                forward.into_iter().chain(cuda.topk_plan_lines()).chain([scores]).collect()
            }
        }
    }
}

impl Cuda {
    fn forward_plans(&self) -> Vec<(Heads, Result<ForwardPlan>)> {
        const SHAPES: [(usize, usize); 7] =
            [(16, 48), (16, 32), (16, 64), (16, 16), (8, 24), (4, 16), (2, 8)];
        let plan = |heads| self.gdn.plan(&Request { heads, variant: None, aligned: true });
        let heads = SHAPES.into_iter().flat_map(|(key, value)| Heads::new(key, value, HeadMap::Grouped));
        heads.map(|heads| (heads, plan(heads).map(|plan| ForwardPlan::new(heads, plan)))).collect()
    }

    /// A decode window, and a prompt's queries at some contexts.
    fn topk_plan_lines(&self) -> Vec<String> {
        const CALLS: [(usize, usize); 4] = [(8, 262_144), (256, 65_536), (256, 262_144), (256, 1_048_576)];
        let line = |(queries, capacity): (usize, usize)| {
            // As the reference engine has it.
            let stride = capacity / BLOCK_CELLS as usize + 2;
            let request = TopkShape::new(queries, stride, WIDTH, WIDTH).map(topk::Request::new);
            let plan = match request.and_then(|request| self.topk.plan(&request)) {
                Ok(plan) => format!("{}: {}", plan.kernel, plan.reason),
                Err(error) => error.to_string(),
            };
            format!("topk {queries} queries, up to {capacity} cells: {plan}")
        };
        CALLS.into_iter().map(line).collect()
    }
}

fn no_variant(variant: Option<Variant>) -> Result<()> {
    match variant {
        None => Ok(()),
        Some(variant) => {
            let reason = "the CPU backend has no variants; leave it out, or say `auto`".into();
            Err(Error::Variant { variant: variant.to_string(), reason })
        }
    }
}
