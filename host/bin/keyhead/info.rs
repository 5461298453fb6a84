//! `keyhead info`.

use crate::{chain, print};
use keyhead::cuda::{self, DeviceFacts};
use keyhead::ptx::{self, MODULES, Module};
use keyhead::{Backend, Result};
use serde::Serialize;
use std::fmt::Write;
use std::process::ExitCode;

/// Show the devices, what runs there and why, and where the PTX came from
///
/// Exit code 0 with and without a GPU.
#[derive(clap::Args)]
pub struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Info {
    version: &'static str,
    ptx: Ptx,
    cpu: Place,
    cuda: Cuda,
}

#[derive(Serialize)]
struct Ptx {
    source: String,
    modules: Vec<ModuleInfo>,
}

#[derive(Serialize)]
struct ModuleInfo {
    name: &'static str,
    ptx_version: &'static str,
    entries: Vec<&'static str>,
}

/// A backend and its plan, or why there is none.
#[derive(Serialize)]
struct Place {
    backend: Option<String>,
    plan: Vec<String>,
    error: Option<String>,
}

#[derive(Serialize)]
struct Cuda {
    /// The newest CUDA version that the driver knows.
    driver: Option<String>,
    devices: Vec<Device>,
    /// Why there is no device, or why they cannot be counted.
    error: Option<String>,
}

#[derive(Serialize)]
struct Device {
    ordinal: usize,
    facts: Option<DeviceFacts>,
    /// The PTX module that it takes.
    module: Option<&'static str>,
    #[serde(flatten)]
    place: Place,
}

impl Place {
    fn new(backend: Result<Backend>) -> Place {
        match backend {
            Ok(backend) => {
                Place { backend: Some(backend.describe()), plan: backend.plan_lines(), error: None }
            }
            Err(error) => Place { backend: None, plan: Vec::new(), error: Some(chain(&error)) },
        }
    }
}

impl Device {
    fn new(ordinal: usize) -> Device {
        // The facts of a card that is too old to run anything are shown, too.
        let (facts, place) = match DeviceFacts::query(ordinal) {
            Ok(facts) => (Some(facts), Place::new(Backend::cuda(ordinal))),
            Err(error) => (None, Place::new(Err(error))),
        };
        let module =
            facts.as_ref().and_then(|facts| Module::for_compute_capability(facts.major, facts.minor));
        Device { ordinal, facts, module: module.map(|module| module.name), place }
    }
}

impl Cuda {
    fn find() -> Cuda {
        let driver = cuda::driver_version().ok().map(version);
        match cuda::Device::count() {
            Ok(0) => Cuda { driver, devices: Vec::new(), error: Some("the driver sees no device".into()) },
            Ok(count) => Cuda { driver, devices: (0..count).map(Device::new).collect(), error: None },
            Err(error) => Cuda { driver, devices: Vec::new(), error: Some(chain(&error)) },
        }
    }
}

/// 12080 is CUDA 12.8.
pub fn version(number: i32) -> String {
    format!("{}.{}", number / 1000, number % 1000 / 10)
}

pub fn run(args: &Args) -> Result<ExitCode> {
    let module = |module: &Module| ModuleInfo {
        name: module.name,
        ptx_version: module.ptx_version,
        entries: module.entries.iter().map(|entry| entry.name).collect(),
    };
    let info = Info {
        version: env!("CARGO_PKG_VERSION"),
        ptx: Ptx { source: ptx::source(), modules: MODULES.iter().map(module).collect() },
        cpu: Place::new(Backend::cpu()),
        cuda: Cuda::find(),
    };
    let text = match args.json {
        true => serde_json::to_string_pretty(&info).map(|text| text + "\n").map_err(|error| {
            let (argument, accepted) = ("--json".into(), "text that JSON can hold".into());
            keyhead::Error::Argument { argument, found: error.to_string(), accepted }
        })?,
        false => info.text(),
    };
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}

impl Info {
    fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a String cannot fail.
        let _ = self.write(&mut text);
        text
    }

    fn write(&self, out: &mut String) -> std::fmt::Result {
        writeln!(out, "keyhead {}", self.version)?;
        writeln!(out, "\nPTX: {}", self.ptx.source)?;
        for ModuleInfo { name, ptx_version, entries } in &self.ptx.modules {
            writeln!(out, "  {name} (PTX {ptx_version}): {}", entries.join(", "))?;
        }
        writeln!(out, "\nCPU")?;
        self.cpu.write(out)?;
        match &self.cuda.driver {
            Some(driver) => writeln!(out, "\nCUDA: driver for CUDA {driver} or older")?,
            None => writeln!(out, "\nCUDA")?,
        }
        if let Some(error) = &self.cuda.error {
            writeln!(out, "  no device: {error}")?;
        }
        for device in &self.cuda.devices {
            if let Some(facts) = &device.facts {
                writeln!(
                    out,
                    "  {}: {}, compute capability {}.{}, {} SMs, {:.1} GiB, PTX module {}",
                    device.ordinal,
                    facts.name,
                    facts.major,
                    facts.minor,
                    facts.sms,
                    facts.memory_bytes as f64 / f64::from(1 << 30),
                    device.module.unwrap_or("none")
                )?;
            }
            device.place.write(out)?;
        }
        Ok(())
    }
}

impl Place {
    fn write(&self, out: &mut String) -> std::fmt::Result {
        if let Some(backend) = &self.backend {
            writeln!(out, "  {backend}")?;
        }
        if let Some(error) = &self.error {
            writeln!(out, "  cannot be used: {error}")?;
        }
        self.plan.iter().try_for_each(|line| writeln!(out, "    {line}"))
    }
}
