//! The PTX modules in the binary: what every entry must and must not contain, and what ptxas makes of it.
//!
//! ptxas is looked for in `KEYHEAD_PTXAS`, on the PATH and in Python's site-packages (`pip install nvidia-cuda-nvcc`). Where there
//! is none the tests that need it say so and pass, unless `KEYHEAD_PTXAS` is set. `KEYHEAD_UPDATE=1` rewrites ptx/registers.json.

use cuda_builder::ptx;
use keyhead::ptx::{MODULES, Module, manifest};
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Name, `bar.sync` instructions, `.minnctapersm`.
const ENTRIES: &[(&str, u32, u32)] = &[
    ("await_seated", 0, 0),
    ("cluster", 7, 0),
    ("cols", 3, 0),
    ("conv", 0, 4),
    ("gates", 0, 0),
    ("heads", 3, 0),
    ("heads_norm", 4, 0),
    ("hold", 0, 0),
    ("keyhead_vpk1", 3, 2),
    ("keyhead_vpk2", 3, 2),
    ("keyhead_vpk3", 3, 2),
    ("keyhead_vpk4", 3, 2),
    ("l2norm", 0, 0),
    ("original", 5, 0),
    ("out_norm", 0, 0),
    ("out_norm_before", 0, 0),
    ("pipe", 3, 0),
    ("prepare", 0, 4),
    ("probe", 0, 0),
    ("register", 4, 0),
    ("release", 0, 0),
    ("scan", 2, 0),
    ("scores", 1, 2),
    ("sieve_maxima", 5, 2),
    ("sieve_rows", 5, 2),
    ("sieve_split", 7, 1),
    ("split_halves", 4, 0),
    ("split_merge", 4, 2),
    ("wide", 4, 2),
];

/// Whether an entry copies with `cp.async`, which sm_70 has not.
fn needs_sm_80(entry: &str) -> bool {
    entry.starts_with("keyhead") || entry == "scan"
}

/// Whether a module has an entry.
fn has(module: &str, entry: &str) -> bool {
    match module {
        "sm_70" => !needs_sm_80(entry) && entry != "cluster",
        "sm_80" => entry != "cluster",
        _ => true,
    }
}

/// Architectures that a module is compiled for: those on which it is the one that is loaded.
fn architectures(module: &Module) -> &'static [&'static str] {
    match module.name {
        "sm_70" => &["sm_75"],
        "sm_80" => &["sm_80", "sm_86", "sm_89"],
        _ => &["sm_90", "sm_100", "sm_120"],
    }
}

/// Threads that an SM holds.
fn threads_of_an_sm(architecture: &str) -> u64 {
    match architecture {
        "sm_75" => 1024,
        "sm_86" | "sm_89" | "sm_120" => 1536,
        _ => 2048,
    }
}

#[test]
fn every_module_has_its_entries_and_passes_the_checks() {
    let names: Vec<_> = MODULES.iter().map(|module| module.name).collect();
    assert_eq!(names, ["sm_70", "sm_80", "sm_90"]);
    for module in MODULES {
        // Parsing refuses local memory, calls and generic accesses.
        let parsed =
            ptx::Module::parse(module.text).unwrap_or_else(|error| panic!("{}: {error}", module.name));
        let mut found: Vec<_> = parsed
            .entries()
            .iter()
            .map(|entry| (entry.name.as_str(), entry.barriers, entry.min_blocks))
            .collect();
        found.sort_unstable();
        let expected: Vec<_> = ENTRIES.iter().copied().filter(|&(name, ..)| has(module.name, name)).collect();
        assert_eq!(found, expected, "{}", module.name);
        assert_eq!(parsed.target(), module.name);
        assert!(!module.text.contains("//"), "comments hold paths");
        for entry in parsed.entries() {
            assert!(entry.threads > 0 && entry.param_bytes > 0, "{entry:?}");
            assert!(entry.shared_bytes <= 48 * 1024, "{entry:?}");
        }
    }
}

#[test]
fn every_card_gets_the_highest_module_it_can_run() {
    let name = |major, minor| Module::for_compute_capability(major, minor).map(|module| module.name);
    assert_eq!(name(6, 1), None);
    assert_eq!(name(7, 0), Some("sm_70"));
    assert_eq!(name(7, 5), Some("sm_70"));
    assert_eq!(name(8, 0), Some("sm_80"));
    assert_eq!(name(8, 9), Some("sm_80"));
    assert_eq!(name(9, 0), Some("sm_90"));
    assert_eq!(name(12, 0), Some("sm_90"));
}

#[test]
fn old_drivers_can_load_the_modules() {
    // PTX 6.0: CUDA 9.0; 7.0: CUDA 11.0; 7.8: CUDA 11.8.
    let versions: Vec<_> = MODULES.iter().map(|module| module.ptx_version).collect();
    assert_eq!(versions, ["6.0", "7.0", "7.8"]);
}

#[test]
fn the_manifest_describes_every_entry() {
    let manifest: Value = serde_json::from_str(&manifest().unwrap()).unwrap();
    for module in manifest["modules"].as_array().unwrap() {
        let listed = module["entries"].as_array().unwrap().len();
        let name = module["name"].as_str().unwrap();
        let of_the_bench = ["await_seated", "hold", "probe", "release"];
        let public = ENTRIES.iter().filter(|known| has(name, known.0) && !of_the_bench.contains(&known.0));
        assert_eq!(listed, public.count(), "all but the bench's own kernels");
        for entry in module["entries"].as_array().unwrap() {
            let name = entry["name"].as_str().unwrap();
            assert!(ENTRIES.iter().any(|entry| entry.0 == name));
            let parameters = &entry["parameters"];
            // Without a gap: each field begins where the one before it ends, and the record ends with the last.
            let mut end = 0;
            for field in parameters["fields"].as_array().unwrap() {
                assert_eq!(field["offset"].as_u64().unwrap(), end, "{name}: {field}");
                let kind = field["type"].as_str().unwrap();
                end += if kind.starts_with("Global") || kind == "u64" { 8 } else { 4 };
            }
            assert_eq!(parameters["bytes"].as_u64().unwrap(), end.next_multiple_of(8), "{name}");
            assert!(entry["grid"].is_string());
            let block: u64 = entry["block"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).product();
            let text = MODULES.iter().find(|m| m.name == module["name"]).unwrap();
            let threads = text.entries.iter().find(|e| e.name == name).unwrap().threads;
            assert_eq!(block, u64::from(threads), "{name}: the block is what `.maxntid` allows");
            assert!(entry["registers"].is_object(), "{name}: no registers in ptx/registers.json");
        }
    }
}

fn ptxas() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("KEYHEAD_PTXAS") {
        return Some(path.into());
    }
    let on_path = std::env::var_os("PATH").and_then(|paths| {
        std::env::split_paths(&paths).map(|folder| folder.join("ptxas")).find(|path| path.is_file())
    });
    on_path.or_else(|| {
        let script =
            "import nvidia.cu13, os; print(os.path.join(list(nvidia.cu13.__path__)[0], 'bin', 'ptxas'))";
        let output = Command::new("python3").args(["-c", script]).output().ok()?;
        let path = PathBuf::from(String::from_utf8(output.stdout).ok()?.trim());
        path.is_file().then_some(path)
    })
}

/// `entry -> registers` of a module on an architecture; panics on a spill or a stack frame.
fn assemble(ptxas: &Path, module: &Module, architecture: &str, folder: &Path) -> Map<String, Value> {
    let source = folder.join(format!("{}.ptx", module.name));
    std::fs::write(&source, module.text).unwrap();
    let output = Command::new(ptxas)
        .args(["-v", &format!("-arch={architecture}"), "-o"])
        .arg(folder.join("out.cubin"))
        .arg(&source)
        .output()
        .unwrap_or_else(|error| panic!("{}: {error}", ptxas.display()));
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{} for {architecture}: {log}", module.name);
    let mut registers = Map::new();
    let mut entry = String::new();
    for line in log.lines() {
        if let Some((_, rest)) = line.split_once("Compiling entry function '") {
            entry = rest.split('\'').next().unwrap().into();
        } else if line.contains("bytes stack frame") {
            let clean = "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads";
            assert_eq!(line.trim(), clean, "{entry} on {architecture}");
        } else if let Some((_, rest)) = line.split_once("Used ") {
            let count: u64 = rest.split_whitespace().next().unwrap().parse().unwrap();
            registers.insert(entry.clone(), json!(count));
        }
    }
    registers
}

#[test]
fn ptxas_needs_no_spill_and_the_checked_in_registers() {
    let Some(ptxas) = ptxas() else {
        println!("skipped: no ptxas (pip install nvidia-cuda-nvcc)");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let mut table = Map::new();
    for module in MODULES {
        let mut entries = Map::new();
        for architecture in architectures(module) {
            for (entry, count) in assemble(&ptxas, module, architecture, folder.path()) {
                let registers = count.as_u64().unwrap();
                assert!(registers <= 255, "{entry}");
                let resident =
                    ENTRIES.iter().find(|known| known.0 == entry).map_or(0, |known| u64::from(known.2));
                let listed = module.entries.iter().find(|listed| listed.name == entry).unwrap();
                let threads = u64::from(listed.threads);
                // 65,536 registers an SM, handed out to warps in units of 256.
                let warp = (registers * 32).next_multiple_of(256);
                assert!(
                    65_536 / (warp * threads / 32) >= resident.min(threads_of_an_sm(architecture) / threads),
                    "{entry} on {architecture}: {registers} registers, {threads} threads"
                );
                let of_entry = entries.entry(entry).or_insert_with(|| json!({}));
                of_entry[*architecture] = count;
            }
        }
        table.insert(module.name.into(), Value::Object(entries));
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("ptx/registers.json");
    if std::env::var_os("KEYHEAD_UPDATE").is_some() {
        let text = serde_json::to_string_pretty(&Value::Object(table)).unwrap();
        std::fs::write(&path, text + "\n").unwrap();
        return;
    }
    if keyhead::ptx::compiler() != keyhead::ptx::checked_in_compiler() {
        println!("skipped: registers are checked in for {}", keyhead::ptx::checked_in_compiler());
        return;
    }
    let expected: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    assert_eq!(Value::Object(table), expected, "ptx/registers.json differs; KEYHEAD_UPDATE=1 rewrites it");
}
