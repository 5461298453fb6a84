//! The builder on a small kernel crate. Needs a compiler for nvptx64: without one the tests say so and pass, unless
//! `KEYHEAD_PTX=build` insists.

use cuda_builder::ptx::{Module, PtxError};
use cuda_builder::{Compiler, CudaBuilder, CudaBuilderError, NvvmArch};
use std::path::Path;
use std::sync::Mutex;

/// The builds share a folder, in which cargo and the assembly files are one build's at a time.
static FOLDER: Mutex<()> = Mutex::new(());

fn compiler() -> Option<Compiler> {
    match Compiler::find() {
        Ok(compiler) => Some(compiler),
        Err(why) if std::env::var("KEYHEAD_PTX").is_ok_and(|wish| wish == "build") => panic!("{why}"),
        Err(why) => {
            println!("skipped: {why}");
            None
        }
    }
}

fn build(compiler: &Compiler, arch: NvvmArch, features: &str) -> Result<Module, CudaBuilderError> {
    let _guard = FOLDER.lock();
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixture");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("nvptx");
    CudaBuilder::new(fixture)
        .arch(arch)
        .target_dir(folder)
        .build_args(&["--features", features])
        .build(compiler)
}

#[test]
fn all_of_cuda_std_becomes_the_instructions_it_should() {
    let Some(compiler) = compiler() else { return };
    for (arch, features) in [(NvvmArch::Compute70, ""), (NvvmArch::Compute80, "sm_80")] {
        let module = build(&compiler, arch, features).unwrap();
        let [entry] = module.entries() else { panic!("one entry: {:?}", module.entries()) };
        assert_eq!(
            (entry.name.as_str(), entry.threads, entry.min_blocks, entry.barriers),
            ("everything", 64, 4, 1)
        );
        assert_eq!((entry.shared_bytes, entry.param_bytes), (2 * (16 + 256), 16));
        let count = |instruction: &str| module.text().matches(instruction).count();
        for instruction in [
            "shfl.sync.up.b32",
            "shfl.sync.down.b32",
            "vote.sync.ballot.b32",
            "vote.sync.all.pred",
            "vote.sync.any.pred",
            "match.any.sync.b32",
            "bar.warp.sync",
            "cvt.rn.f16.f32",
            "atom.shared.add.u32",
            "atom.global.add.u32",
            "membar.gl",
            "membar.cta",
        ] {
            assert_eq!(count(instruction), 1, "{instruction} in {}", module.text());
        }
        let reductions = if features.is_empty() { 0 } else { 1 };
        assert_eq!(count("redux.sync.add"), reductions);
        assert_eq!(count("cp.async.ca.shared.global"), reductions);
    }
}

#[test]
fn a_kernel_that_must_not_ship_fails_the_build() {
    let Some(compiler) = compiler() else { return };
    let refuse = |features| match build(&compiler, NvvmArch::Compute80, features) {
        Err(CudaBuilderError::Ptx { error, .. }) => error,
        other => panic!("{features}: {other:?}"),
    };
    assert!(
        matches!(refuse("sm_80,local_array"), PtxError::LocalMemory { entry, .. } if entry == "local_array")
    );
    assert_eq!(
        refuse("sm_80,wrong_barriers"),
        PtxError::Barriers { entry: "wrong_barriers".into(), found: 1, declared: 2 }
    );
}

#[test]
fn what_is_wrong_is_named() {
    let Some(compiler) = compiler() else { return };
    let missing = CudaBuilder::new("no/such/crate").build(&compiler).unwrap_err();
    assert!(matches!(missing, CudaBuilderError::CratePathDoesntExist(_)));
    let error = build(&compiler, NvvmArch::Compute70, "no_such_feature").unwrap_err();
    assert!(error.to_string().contains("no_such_feature"), "{error}");
}
