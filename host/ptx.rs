//! The PTX modules in this binary, and the manifest that an engine in another language loads them by.

use crate::error::{Error, Result};
use crate::gdn::Variant;
use kernels_gpu::gdn::{conv, out_norm};
use kernels_gpu::params::{
    Field, HeadsNormArgs, OutNormArgs, PrepareArgs, RecurrenceArgs, ScoresArgs, TopkArgs,
};
use kernels_gpu::topk::{cluster, histogram, original, scores, sieve};
use serde::Serialize;

/// A PTX module, built for one feature level.
#[derive(Clone, Copy, Debug)]
pub struct Module {
    /// The architecture it is built for; it runs on every card of at least this compute capability.
    pub name: &'static str,
    /// The PTX version: the driver must be as new as the CUDA release that brought it.
    pub ptx_version: &'static str,
    pub text: &'static str,
    pub entries: &'static [Entry],
}

/// What an entry's PTX says.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    pub name: &'static str,
    /// The largest block.
    pub threads: u32,
    /// Blocks that must fit on an SM; 0 where nothing is asked.
    pub min_blocks: u32,
    /// Blocks of a cluster; 0 where it asks for none.
    pub cluster: u32,
    /// Barriers of the block and of the cluster.
    pub barriers: u32,
    /// Static shared memory of a block, in bytes.
    pub shared_bytes: u32,
    /// Bytes of the argument record.
    pub param_bytes: u32,
}

include!(concat!(env!("OUT_DIR"), "/modules.rs"));

/// The compiler that made the modules, as `rustc --version` prints it.
pub fn compiler() -> &'static str {
    COMPILER
}

/// The compiler that made the modules checked in under ptx/.
pub fn checked_in_compiler() -> &'static str {
    CHECKED_IN_COMPILER
}

/// Where the modules came from, in a line.
pub fn source() -> String {
    match BUILT_HERE {
        true => format!("built by {COMPILER}"),
        false => format!("checked in, built by {COMPILER}"),
    }
}

/// Registers of each entry, as ptxas gives them for the checked-in modules: `module -> entry -> sm_NN -> registers`.
const REGISTERS: &str = include_str!("../ptx/registers.json");

impl Module {
    /// The compute capability it is built for, `(8, 0)` for sm_80.
    pub fn compute_capability(&self) -> (u32, u32) {
        let digits: u32 = self.name.trim_start_matches("sm_").parse().unwrap_or(u32::MAX);
        (digits / 10, digits % 10)
    }

    /// The module for a card: the highest level that it can run.
    pub fn for_compute_capability(major: u32, minor: u32) -> Option<&'static Module> {
        MODULES.iter().rev().find(|module| module.compute_capability() <= (major, minor))
    }
}

/// How an entry is launched, beside what its PTX says.
struct Launch {
    block: [u32; 3],
    grid: &'static str,
    record: &'static str,
    fields: &'static [Field],
    what: &'static str,
}

/// `None` for the kernels that `keyhead bench` measures with: they are not for engines.
fn launch(entry: &str) -> Option<Launch> {
    let recurrence = |variant: Variant, grid, what| {
        Some(Launch {
            block: variant.block(),
            grid,
            record: "RecurrenceArgs",
            fields: RecurrenceArgs::FIELDS,
            what,
        })
    };
    let prepare = |grid, what| {
        Some(Launch {
            block: [conv::THREADS as u32, 1, 1],
            grid,
            record: "PrepareArgs",
            fields: PrepareArgs::FIELDS,
            what,
        })
    };
    let topk = |threads, grid, what| {
        Some(Launch {
            block: [threads as u32, 1, 1],
            grid,
            record: "TopkArgs",
            fields: TopkArgs::FIELDS,
            what,
        })
    };
    match entry {
        "heads" => recurrence(
            Variant::Heads,
            "[value_heads, 1, 1]",
            "the recurrence, any number of value heads a key head",
        ),
        "heads_norm" => Some(Launch {
            block: Variant::Heads.block(),
            grid: "[value_heads, 1, 1]",
            record: "HeadsNormArgs",
            fields: HeadsNormArgs::FIELDS,
            what: "`heads` with the out norm of its y in the same kernel",
        }),
        "cols" => recurrence(
            Variant::Cols,
            "[value_heads * 4, 1, 1]",
            "the recurrence, any number of value heads a key head",
        ),
        "scan" => recurrence(
            Variant::Scan,
            "[value_heads * 2, 1, 1]",
            "the recurrence, any number of value heads a key head; q, k, v 16-byte aligned, strides multiples of 4",
        ),
        "pipe" => recurrence(
            Variant::Pipe,
            "[value_heads * 4, 1, 1]",
            "the recurrence, any number of value heads a key head",
        ),
        _ if entry.starts_with("keyhead_vpk") => recurrence(
            Variant::Keyhead,
            "[key_heads * 4, 1, 1]; all blocks resident at once",
            "the recurrence for the number of value heads a key head in its name; q, k, v 16-byte aligned, strides \
             multiples of 4",
        ),
        "prepare" => prepare(
            "[ceil(tokens / 16), ceil((2 * key_heads + value_heads) / 8) + 1, 1]",
            "conv, l2norm and gates of a chunk in one launch; qkv rows aligned to 4 elements, conv_weight, \
             conv_state and h to 16 bytes",
        ),
        "conv" => prepare(
            "[ceil(tokens / 16), ceil((2 * key_heads + value_heads) / 8), 1]",
            "the convolution, its SiLU and the new history; alignment as prepare",
        ),
        "l2norm" => prepare(
            "[tokens, ceil(2 * key_heads / 8), 1]",
            "q and k rows of h to length 1, in place; h 16-byte aligned",
        ),
        "gates" => prepare("[ceil(tokens / 16), 1, 1]", "the log of the decay, and beta"),
        "original" => topk(
            original::THREADS,
            "[queries, 1, 1]",
            "the block top-k, rows of any length; as the reference engine had it first",
        ),
        "register" => topk(
            histogram::THREADS,
            "[queries, 1, 1]",
            "the block top-k, rows of at most 33792 blocks: the keys are read once",
        ),
        "wide" => topk(histogram::THREADS, "[queries, 1, 1]", "the block top-k, rows of any length"),
        "split_halves" => topk(
            histogram::THREADS,
            "[2 * queries, 1, 1]",
            "the block top-k, rows of at most 67584 blocks, first launch; scratch: queries * 2 * (2 * (cap / 4 + 2) + 1) words",
        ),
        "split_merge" => topk(
            histogram::THREADS,
            "[queries, 1, 1]",
            "the block top-k, rows of at most 67584 blocks, second launch, with the arguments of split_halves",
        ),
        "cluster" => topk(
            cluster::THREADS,
            "[8 * queries, 1, 1], clusters of 8",
            "the block top-k, rows of at most 139264 blocks, for few queries",
        ),
        "sieve_rows" => topk(
            sieve::THREADS,
            "[queries, 1, 1]",
            "the block top-k, rows of at most 1179520 blocks, widths of at most 2301: one read of the scores, and of the \
             chunks that matter",
        ),
        "sieve_split" => topk(
            sieve::THREADS,
            "[parts, queries, 1]",
            "sieve_rows with `parts` blocks a query; scratch, 16-byte aligned: queries (rounded up to 32) + queries * 9216 \
             words, of which the first `queries` are 0 before the first launch",
        ),
        "sieve_maxima" => topk(
            sieve::THREADS,
            "[queries, 1, 1]",
            "sieve_rows with the maxima of the chunks in scratch, as `scores` writes them; 16-byte aligned",
        ),
        "scores" => Some(Launch {
            block: [scores::THREADS as u32, 1, 1],
            grid: "[ceil(queries / 8) * ceil(reach / 64), 1, 1]",
            record: "ScoresArgs",
            fields: ScoresArgs::FIELDS,
            what: "the block scores; pooled, tail and q_idx 16-byte aligned",
        }),
        "out_norm" | "out_norm_before" => Some(Launch {
            block: [out_norm::THREADS as u32, 1, 1],
            grid: "[tokens, ceil(value_heads / 8), 1]",
            record: "OutNormArgs",
            fields: OutNormArgs::FIELDS,
            what: "the gated RMS norm; y, z and weight 16-byte aligned; the one before also stores f32 over y",
        }),
        _ => None,
    }
}

#[derive(Serialize)]
struct Manifest {
    keyhead: &'static str,
    compiler: &'static str,
    /// Of everything that becomes PTX: `build.rs` compares it.
    sources: &'static str,
    abi: &'static str,
    modules: Vec<ManifestModule>,
}

#[derive(Serialize)]
struct ManifestModule {
    name: &'static str,
    file: String,
    ptx_version: &'static str,
    entries: Vec<ManifestEntry>,
}

#[derive(Serialize)]
struct ManifestEntry {
    name: &'static str,
    what: &'static str,
    block: [u32; 3],
    grid: &'static str,
    static_shared_bytes: u32,
    dynamic_shared_bytes: u32,
    parameters: ManifestParameters,
    registers: serde_json::Value,
}

#[derive(Serialize)]
struct ManifestParameters {
    record: &'static str,
    bytes: u32,
    fields: &'static [Field],
}

/// The file that a module is exported to.
pub fn file_name(module: &Module) -> String {
    format!("keyhead_{}.ptx", module.name)
}

/// The launch manifest, as JSON: for each module its entries with argument record, block, grid, shared memory, and registers
/// by architecture.
pub fn manifest() -> Result<String> {
    let damaged = |error: serde_json::Error| Error::argument("manifest", error, "JSON");
    let registers: serde_json::Value = serde_json::from_str(REGISTERS).map_err(damaged)?;
    let entry = |module: &Module, entry: &Entry| {
        let launch = launch(entry.name)?;
        Some(ManifestEntry {
            name: entry.name,
            what: launch.what,
            block: launch.block,
            grid: launch.grid,
            static_shared_bytes: entry.shared_bytes,
            dynamic_shared_bytes: 0,
            parameters: ManifestParameters {
                record: launch.record,
                bytes: entry.param_bytes,
                fields: launch.fields,
            },
            registers: registers[module.name][entry.name].clone(),
        })
    };
    let modules = MODULES.iter().map(|module| ManifestModule {
        name: module.name,
        file: file_name(module),
        ptx_version: module.ptx_version,
        entries: module.entries.iter().filter_map(|e| entry(module, e)).collect(),
    });
    let manifest = Manifest {
        keyhead: env!("CARGO_PKG_VERSION"),
        compiler: COMPILER,
        sources: SOURCES,
        abi: "each entry takes one record by value (kernelParams[0] points at it); pointers are device addresses, \
              strides are in elements",
        modules: modules.collect(),
    };
    serde_json::to_string_pretty(&manifest).map(|text| text + "\n").map_err(damaged)
}
