//! PTX text: what the compiler leaves becomes what ships, and is checked.
//!
//! rustc has no attribute for launch bounds, so `#[kernel]` leaves a comment in the entry's body, which moves into the header
//! here. All other comments go too: they hold paths, and the modules should not depend on where they were built.

use std::fmt::Write;

/// A PTX module that passed the checks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Module {
    text: String,
    version: String,
    target: String,
    entries: Vec<Entry>,
}

/// What an entry's PTX says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    pub name: String,
    /// Largest block (`.maxntid`).
    pub threads: u32,
    /// Blocks that must fit on an SM (`.minnctapersm`); 0 where nothing is asked.
    pub min_blocks: u32,
    /// Blocks of a cluster (`.reqnctapercluster`); 0 where it asks for none.
    pub cluster: u32,
    /// Barriers: `bar.sync` instructions, and `barrier.cluster.arrive`, each of which has its wait.
    pub barriers: u32,
    /// Static shared memory in bytes.
    pub shared_bytes: u32,
    /// Bytes of its parameters.
    pub param_bytes: u32,
}

/// Why PTX is not fit to ship.
#[non_exhaustive]
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum PtxError {
    #[error("line {line}: {problem}: {text}")]
    Syntax { line: usize, problem: &'static str, text: String },
    #[error(
        "entry `{entry}`: {found} `bar.sync`, its kernel declares {declared}: the compiler cloned or dropped a barrier"
    )]
    Barriers { entry: String, found: u32, declared: u32 },
    #[error("entry `{entry}` has no #[kernel] marker")]
    NoMarker { entry: String },
    #[error("entry `{entry}` uses local memory (a per-thread array did not stay in registers): {text}")]
    LocalMemory { entry: String, text: String },
    #[error("entry `{entry}` calls a function: {text}")]
    Call { entry: String, text: String },
    #[error("entry `{entry}` accesses memory through a generic address: {text}")]
    Generic { entry: String, text: String },
    #[error("a function outside the entries: {text}")]
    Function { text: String },
}

impl Module {
    /// Takes the compiler's output: moves the markers, drops the comments, checks.
    pub fn from_compiler(assembly: &str) -> Result<Module, PtxError> {
        let declared = Declared::all(assembly)?;
        let module = Module::parse(&move_markers(assembly, &declared))?;
        for entry in &module.entries {
            let Some(declared) = declared.iter().find(|declared| declared.entry == entry.name) else {
                return Err(PtxError::NoMarker { entry: entry.name.clone() });
            };
            if declared.barriers != entry.barriers {
                return Err(PtxError::Barriers {
                    entry: entry.name.clone(),
                    found: entry.barriers,
                    declared: declared.barriers,
                });
            }
        }
        Ok(module)
    }

    /// Reads finished PTX and checks that no entry uses local memory, calls, or generic addresses.
    pub fn parse(text: &str) -> Result<Module, PtxError> {
        let mut module =
            Module { text: text.into(), version: String::new(), target: String::new(), entries: Vec::new() };
        let mut in_entry = false;
        for (index, raw) in text.lines().enumerate() {
            let line = raw.trim();
            let number = |word: &str| parse_number(word, index, line);
            if let Some(version) = line.strip_prefix(".version ") {
                module.version = version.into();
            } else if let Some(target) = line.strip_prefix(".target ") {
                module.target = target.into();
            } else if line.contains(".func ") {
                return Err(PtxError::Function { text: line.into() });
            } else if let Some(name) = entry_name(line) {
                module.entries.push(Entry { name: name.into(), ..Entry::default() });
                in_entry = true;
            } else if line == "}" {
                in_entry = false;
            }
            let Some(entry) = module.entries.last_mut().filter(|_| in_entry) else { continue };
            if let Some(bound) = line.strip_prefix(".maxntid ") {
                entry.threads = number(bound)?;
            } else if let Some(bound) = line.strip_prefix(".minnctapersm ") {
                entry.min_blocks = number(bound)?;
            } else if let Some(blocks) = line.strip_prefix(".reqnctapercluster ") {
                entry.cluster = number(blocks)?;
            } else if line.starts_with(".param ") {
                entry.param_bytes += number(array_length(line).unwrap_or("8"))?;
            } else if line.starts_with(".shared ") {
                entry.shared_bytes += number(array_length(line).unwrap_or(""))?;
            } else if line.starts_with("bar.sync")
                || line.starts_with("barrier") && !line.starts_with("barrier.cluster.wait")
            {
                entry.barriers += 1;
            }
            check_line(&entry.name, line)?;
        }
        Ok(module)
    }

    /// The module's text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The PTX version, `7.0`.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// The architecture, `sm_80`.
    pub fn target(&self) -> &str {
        &self.target
    }

    /// The kernels, in the order of the text.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }
}

fn check_line(entry: &str, line: &str) -> Result<(), PtxError> {
    let (entry, text) = (entry.to_owned(), line.to_owned());
    // A predicate may stand before the instruction.
    let instruction = match line.strip_prefix('@') {
        Some(rest) => rest.split_once(char::is_whitespace).map_or("", |(_, rest)| rest.trim_start()),
        None => line,
    };
    let operation = instruction.split_whitespace().next().unwrap_or("");
    let mut parts = operation.split('.');
    let (name, qualifiers): (&str, Vec<&str>) = (parts.next().unwrap_or(""), parts.collect());
    let states_space = ["global", "shared", "param", "const"];
    match name {
        _ if line.starts_with(".local") || qualifiers.contains(&"local") => {
            Err(PtxError::LocalMemory { entry, text })
        }
        "call" => Err(PtxError::Call { entry, text }),
        "ld" | "st" | "atom" | "red"
            if !qualifiers.iter().any(|q| states_space.contains(&q.trim_end_matches("::cluster"))) =>
        {
            Err(PtxError::Generic { entry, text })
        }
        _ => Ok(()),
    }
}

fn entry_name(line: &str) -> Option<&str> {
    line.strip_prefix(".visible .entry ").map(|rest| rest.trim_end_matches(['(', ')']))
}

fn array_length(line: &str) -> Option<&str> {
    let open = line.find('[')?;
    line[open + 1..].split(']').next()
}

fn parse_number(word: &str, line: usize, text: &str) -> Result<u32, PtxError> {
    let syntax = || PtxError::Syntax { line: line + 1, problem: "expected a number", text: text.into() };
    word.trim().parse().map_err(|_| syntax())
}

/// What `#[kernel]` declares.
#[derive(Default)]
struct Declared {
    entry: String,
    threads: u32,
    min_blocks: u32,
    cluster: u32,
    barriers: u32,
}

impl Declared {
    fn all(assembly: &str) -> Result<Vec<Declared>, PtxError> {
        let mut all = Vec::new();
        let mut entry = "";
        for (index, raw) in assembly.lines().enumerate() {
            let line = raw.trim();
            if let Some(name) = entry_name(line) {
                entry = name;
            }
            let Some(marker) = line.strip_prefix("// kernel ") else { continue };
            let mut declared = Declared { entry: entry.into(), ..Declared::default() };
            for pair in marker.split_whitespace() {
                let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
                let value = parse_number(value, index, line)?;
                match name {
                    "threads" => declared.threads = value,
                    "min_blocks" => declared.min_blocks = value,
                    "cluster" => declared.cluster = value,
                    "barriers" => declared.barriers = value,
                    _ => {
                        return Err(PtxError::Syntax {
                            line: index + 1,
                            problem: "unknown word in a kernel marker",
                            text: line.into(),
                        });
                    }
                }
            }
            all.push(declared);
        }
        Ok(all)
    }
}

/// Launch bounds go between an entry's parameter list and its body.
fn move_markers(assembly: &str, declared: &[Declared]) -> String {
    let mut text = String::with_capacity(assembly.len());
    let mut pending = None;
    for raw in assembly.lines() {
        let line = raw.trim();
        if line.starts_with("//") || line.is_empty() {
            continue;
        }
        if let Some(name) = entry_name(line) {
            pending = declared.iter().find(|declared| declared.entry == name);
        }
        if line == "{"
            && let Some(bounds) = pending.take()
        {
            let _ = writeln!(text, ".maxntid {}", bounds.threads);
            if bounds.min_blocks > 0 {
                let _ = writeln!(text, ".minnctapersm {}", bounds.min_blocks);
            }
            if bounds.cluster > 0 {
                let _ = writeln!(text, ".explicitcluster\n.reqnctapercluster {}", bounds.cluster);
            }
        }
        // Comments at the end of a line name source labels; nothing in PTX has `//` otherwise.
        let code = raw.split("//").next().unwrap_or("").trim_end();
        text.push_str(code);
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = ".version 7.0\n.target sm_80\n.address_size 64\n";

    fn assembly(body: &str) -> String {
        format!(
            "//\n// Generated\n//\n{HEAD}\n\t// .globl k\n.visible .entry k(\n\t.param .align 8 .b8 k_param_0[24]\n)\n{{\n{body}\n\tret;\n\n}}\n"
        )
    }

    const MARKER: &str =
        "\t// begin inline asm\n\t// kernel threads=128 min_blocks=2 barriers=1\n\t// end inline asm\n";

    #[test]
    fn bounds_move_into_the_header_and_comments_go() {
        let module = Module::from_compiler(&assembly(&format!(
            "{MARKER}\t.shared .align 16 .b8 %rd1_shared[1040];\n\tbar.sync \t0;"
        )))
        .unwrap();
        assert_eq!((module.version(), module.target()), ("7.0", "sm_80"));
        assert_eq!(
            module.entries(),
            [Entry {
                name: "k".into(),
                threads: 128,
                min_blocks: 2,
                cluster: 0,
                barriers: 1,
                shared_bytes: 1040,
                param_bytes: 24
            }]
        );
        assert!(module.text().contains(")\n.maxntid 128\n.minnctapersm 2\n{\n"));
        assert!(!module.text().contains("//"));
        assert_eq!(Module::parse(module.text()).unwrap(), module);
    }

    #[test]
    fn a_cluster_moves_into_the_header_and_its_barriers_count() {
        let body = "\t// kernel threads=64 cluster=8 barriers=2\n\tbarrier.cluster.arrive.aligned;\n\
                    \tbarrier.cluster.wait.aligned;\n\tbar.sync 0;\n\tst.shared::cluster.u32 [%r1], %r2;";
        let module = Module::from_compiler(&assembly(body)).unwrap();
        assert!(module.text().contains(")\n.maxntid 64\n.explicitcluster\n.reqnctapercluster 8\n{\n"));
        assert_eq!((module.entries()[0].cluster, module.entries()[0].barriers), (8, 2));
    }

    #[test]
    fn a_cloned_barrier_fails() {
        let error =
            Module::from_compiler(&assembly(&format!("{MARKER}\tbar.sync 0;\n\tbar.sync 0;"))).unwrap_err();
        assert_eq!(error, PtxError::Barriers { entry: "k".into(), found: 2, declared: 1 });
    }

    #[test]
    fn what_must_not_ship_is_refused() {
        let refuse = |line: &str| {
            Module::from_compiler(&assembly(&format!("{MARKER}\tbar.sync 0;\n\t{line}"))).unwrap_err()
        };
        assert!(matches!(refuse(".local .align 8 .b8 __local_depot0[32];"), PtxError::LocalMemory { .. }));
        assert!(matches!(refuse("@%p1 ld.local.b32 %r1, [%rd1];"), PtxError::LocalMemory { .. }));
        assert!(matches!(refuse("call.uni (retval0), f, (param0);"), PtxError::Call { .. }));
        assert!(matches!(refuse("@%p1 st.b32 [%rd1], %r1;"), PtxError::Generic { .. }));
        assert!(matches!(refuse("ld.v4.b32 {%r1, %r2, %r3, %r4}, [%rd1];"), PtxError::Generic { .. }));
    }

    #[test]
    fn an_entry_without_a_marker_fails() {
        let error = Module::from_compiler(&assembly("")).unwrap_err();
        assert_eq!(error, PtxError::NoMarker { entry: "k".into() });
    }
}
