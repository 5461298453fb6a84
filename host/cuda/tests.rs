//! The whole module against a fake driver whose device memory is the host's, and against a real GPU where
//! there is one.

use std::env;
use std::path::Path;
use std::process::Command;

use super::{Device, DeviceBuffer, DeviceFacts, Event, Graph, Kernel, Module, Stream, driver_version};
use crate::error::Error;

/// Two kernels that take the record [`Params`]: one doubles numbers, the other reads an address that is not
/// there.
const PTX: &str = "
.version 7.0
.target sm_70
.address_size 64

.visible .entry double_all(.param .align 8 .b8 params[16])
{
    .reg .pred %p;
    .reg .b32 %i, %n, %step, %thread;
    .reg .f32 %x;
    .reg .b64 %base, %at;
    ld.param.u64 %base, [params];
    ld.param.u32 %n, [params+8];
    cvta.to.global.u64 %base, %base;
    mov.u32 %i, %ctaid.x;
    mov.u32 %step, %ntid.x;
    mov.u32 %thread, %tid.x;
    mad.lo.u32 %i, %i, %step, %thread;
    setp.ge.u32 %p, %i, %n;
    @%p ret;
    mad.wide.u32 %at, %i, 4, %base;
    ld.global.f32 %x, [%at];
    add.f32 %x, %x, %x;
    st.global.f32 [%at], %x;
    ret;
}

.visible .entry fault(.param .align 8 .b8 params[16])
{
    .reg .b64 %at;
    mov.u64 %at, 64;
    st.global.u64 [%at], %at;
    ret;
}
";

#[repr(C)]
#[derive(Clone, Copy)]
struct Params {
    numbers: u64,
    len: u32,
}

/// Runs `body` in a process of its own, with a driver that is "missing", the "real" one if there is one, or a
/// fake one of the given kind, see `crates/cuda_shim/tests/fake/driver.rs`.
fn with_driver(test: &str, kind: &str, body: impl FnOnce()) {
    if env::var_os("KEYHEAD_TEST_CHILD").is_some() {
        return body();
    }
    let folder = tempfile::tempdir().unwrap();
    let library = folder.path().join("libfakecuda.so");
    if !["missing", "real"].contains(&kind) {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/cuda_shim/tests/fake/driver.rs");
        let mut rustc = Command::new(env::var_os("RUSTC").unwrap_or("rustc".into()));
        rustc.args(["--crate-type", "cdylib", "--edition", "2024", "-o"]).arg(&library).arg(source);
        assert!(rustc.status().unwrap().success());
    }
    let name = format!("{}::{test}", module_path!().split_once("::").unwrap().1);
    let mut child = Command::new(env::current_exe().unwrap());
    child.args([&name, "--exact", "--nocapture"]).env("KEYHEAD_TEST_CHILD", "1").env("FAKE_DRIVER", kind);
    if kind != "real" {
        child.env("KEYHEAD_LIBCUDA", library);
    }
    let output = child.output().unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && stdout.contains("1 passed"),
        "{stdout}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Device 0 of a real driver, or the reason to leave a test out.
fn real_device() -> Option<Device> {
    match Device::open(0) {
        Err(Error::NoDriver { .. } | Error::NoDevice { .. } | Error::ComputeCapability { .. }) => {
            eprintln!("left out: no GPU here");
            None
        }
        device => Some(device.unwrap()),
    }
}

/// How often the fake driver's primary context is retained: it gives that in place of the cache
/// configuration.
fn contexts_in_use() -> i32 {
    let mut count = 0;
    // SAFETY: `count` is a C int.
    assert_eq!(unsafe { cuda_shim::ffi::cuCtxGetCacheConfig(&mut count) }, 0);
    count
}

fn double(kernel: &Kernel, stream: &Stream, numbers: &DeviceBuffer<f32>) -> crate::error::Result<()> {
    let params = Params { numbers: numbers.as_ptr(), len: numbers.len() as u32 };
    // SAFETY: the kernel takes this record and touches only the buffer, which the tests keep until it has
    // run.
    unsafe { kernel.launch_with(stream, [params.len.div_ceil(64), 1, 1], [64, 1, 1], 0, &params) }
}

/// What must hold on every device.
fn everything(device: &Device) {
    let module = Module::load(device, "test", PTX).unwrap();
    let kernel = module.kernel("double_all").unwrap();
    let stream = Stream::new(device).unwrap();
    let numbers: Vec<f32> = (0..1000).map(|i| i as f32).collect();
    let mut out = vec![0.0; numbers.len()];

    // Copies, a launch, parts of a buffer.
    let mut buffer = DeviceBuffer::from_slice(&stream, "numbers", &numbers).unwrap();
    double(&kernel, &stream, &buffer).unwrap();
    buffer.download(&stream, &mut out).unwrap();
    assert!(out.iter().zip(&numbers).all(|(out, x)| *out == 2.0 * x));
    buffer.upload_at(&stream, 10, &[-1.0, -2.0]).unwrap();
    buffer.download_at(&stream, 9, &mut out[..4]).unwrap();
    assert_eq!(out[..4], [18.0, -1.0, -2.0, 24.0]);
    let mut copy = DeviceBuffer::alloc(device, "copy", buffer.len()).unwrap();
    copy.copy_from(&stream, &buffer).unwrap();
    copy.download_at(&stream, 10, &mut out[..2]).unwrap();
    assert_eq!(out[..2], [-1.0, -2.0]);
    copy.memset_u8(&stream, 0).unwrap();
    copy.download(&stream, &mut out).unwrap();
    assert!(out.iter().all(|&x| x == 0.0));
    assert_eq!(buffer.as_ptr() % 256, 0);
    assert_eq!(buffer.at(3).unwrap(), buffer.as_ptr() + 12);

    // Lengths, and buffers of nothing.
    assert!(matches!(buffer.download(&stream, &mut out[1..]), Err(Error::Length { found: 999, .. })));
    assert!(matches!(buffer.upload_at(&stream, 999, &[1.0, 2.0]), Err(Error::Length { found: 1001, .. })));
    assert!(matches!(buffer.at(usize::MAX), Err(Error::Length { .. })));
    let empty = DeviceBuffer::<f32>::from_slice(&stream, "nothing", &[]).unwrap();
    empty.download(&stream, &mut []).unwrap();
    assert_eq!((empty.as_ptr(), empty.is_empty()), (0, true));
    double(&kernel, &stream, &empty).unwrap(); // an empty grid

    // Occupancy, more dynamic shared memory than 48 KiB, and too much.
    assert!(kernel.registers() > 0 && kernel.max_threads() >= 64);
    let few = kernel.occupancy(64, 0).unwrap();
    let optin = device.facts().shared_per_block_optin;
    assert!(few > 1 && kernel.occupancy(64, optin as usize).unwrap() >= 1);
    let params = Params { numbers: buffer.as_ptr(), len: 4 };
    // SAFETY: as in `double`.
    let launch =
        |shared, threads| unsafe { kernel.launch_with(&stream, [1, 1, 1], [threads, 1, 1], shared, &params) };
    launch(optin, 64).unwrap();
    // A second handle of the same function must not lower the limit that the first has raised.
    module.kernel("double_all").unwrap().occupancy(64, 60 << 10).unwrap();
    launch(optin, 64).unwrap();
    assert!(matches!(launch(optin + 1, 64), Err(Error::Argument { .. })));
    assert!(matches!(launch(0, 2048), Err(Error::Argument { .. })));

    // Events and graphs.
    let (start, end) = (Event::new(device).unwrap(), Event::new(device).unwrap());
    buffer.upload(&stream, &numbers).unwrap();
    start.record(&stream).unwrap();
    let record = |stream: &Stream| (0..3).try_for_each(|_| double(&kernel, stream, &buffer));
    // SAFETY: buffer and module outlive the graph.
    let mut graph = unsafe { Graph::capture(&stream, record) }.unwrap();
    graph.launch(&stream).unwrap();
    graph.launch(&stream).unwrap();
    end.record(&stream).unwrap();
    assert!(end.elapsed_ms(&start).unwrap() > 0.0);
    buffer.download(&stream, &mut out).unwrap();
    assert!(out.iter().zip(&numbers).all(|(out, x)| *out == 64.0 * x));
    let refused = || Error::argument("test", "refused", "anything else");
    // SAFETY: nothing is captured.
    assert!(matches!(unsafe { Graph::capture(&stream, |_| Err(refused())) }, Err(Error::Argument { .. })));
    let other = Stream::new(device).unwrap();
    other.wait(&end).unwrap();
    other.synchronize().unwrap();

    // Other threads, a borrowed stream, the caller's context.
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // SAFETY: `stream` outlives the borrow.
            let borrowed = unsafe { Stream::borrow_raw(device, stream.as_raw()) };
            double(&kernel, &borrowed, &buffer).unwrap();
            borrowed.synchronize().unwrap();
        });
    });
    buffer.download(&stream, &mut out).unwrap();
    assert!(out.iter().zip(&numbers).all(|(out, x)| *out == 128.0 * x));

    // What the driver refuses.
    let (_, total) = device.memory_info().unwrap();
    match DeviceBuffer::<u8>::alloc(device, "too much", total + 1) {
        Err(Error::DeviceMemory { what, bytes, total: found, .. }) => {
            assert_eq!((what.as_str(), bytes, found), ("too much", total + 1, total));
        }
        other => panic!("{:?}", other.err()),
    }
    match module.kernel("nobody") {
        Err(Error::Driver { call, code: 500, .. }) => assert!(call.contains("`nobody` in module `test`")),
        other => panic!("{other:?}"),
    }
    match Module::load(device, "broken", &PTX.replace("setp.ge.u32", "nonsense")) {
        Err(Error::Jit { module, log, .. }) => {
            assert!(module == "broken" && log.contains("nonsense"), "{log}")
        }
        other => panic!("{:?}", other.err()),
    }
    assert!(matches!(Module::load(device, "zero", "\0"), Err(Error::Argument { .. })));
    let count = Device::count().unwrap();
    assert!(matches!(Device::open(count), Err(Error::NoDevice { found, .. }) if found == count));
}

#[test]
fn everything_on_a_real_device() {
    if let Some(device) = real_device() {
        everything(&device);
    }
}

#[test]
fn everything_on_a_fake_device() {
    with_driver("everything_on_a_fake_device", "fine", || {
        let device = Device::open(0).unwrap();
        assert_eq!(device.facts().name, "Fake GPU");
        everything(&device);
        let (free, total) = device.memory_info().unwrap();
        assert_eq!(free, total, "every buffer was freed");

        // No context is left current, and the device closes when the last thing made on it is gone.
        assert!(super::device::current().unwrap().is_null());
        let stream = Stream::new(&device).unwrap();
        drop(device);
        assert_eq!(contexts_in_use(), 1);
        drop(stream);
        assert_eq!(contexts_in_use(), 0);
        assert!(super::device::current().unwrap().is_null());
    });
}

#[test]
fn a_fault_names_the_kernels_launched_before() {
    with_driver("a_fault_names_the_kernels_launched_before", "fine", || fault(&Device::open(0).unwrap()));
}

#[test]
fn a_fault_of_a_real_device_names_the_kernels_launched_before() {
    with_driver("a_fault_of_a_real_device_names_the_kernels_launched_before", "real", || {
        if let Some(device) = real_device() {
            fault(&device);
        }
    });
}

fn fault(device: &Device) {
    let stream = Stream::new(device).unwrap();
    let module = Module::load(device, "test", PTX).unwrap();
    let buffer = DeviceBuffer::from_slice(&stream, "numbers", &[1.0f32; 64]).unwrap();
    double(&module.kernel("double_all").unwrap(), &stream, &buffer).unwrap();
    let params = Params { numbers: 0, len: 0 };
    let fault = module.kernel("fault").unwrap();
    // SAFETY: a fault is what this test is about; it ends the child process's context only.
    unsafe { fault.launch_with(&stream, [1, 1, 1], [1, 1, 1], 0, &params) }.unwrap();
    for _ in 0..2 {
        match stream.synchronize() {
            Err(Error::Driver { call, code: 700, name, .. }) => {
                assert_eq!(call, "cuStreamSynchronize, after the launch of double_all, fault,");
                assert_eq!(name, "CUDA_ERROR_ILLEGAL_ADDRESS");
            }
            other => panic!("{other:?}"),
        }
    }
    drop(buffer); // frees on a broken context are silent
}

#[test]
fn without_a_driver() {
    with_driver("without_a_driver", "missing", || {
        match Device::open(0) {
            Err(Error::NoDriver { reason }) => assert!(reason.contains("libfakecuda.so"), "{reason}"),
            other => panic!("{other:?}"),
        }
        assert!(matches!(Device::count(), Err(Error::NoDriver { .. })));
        assert!(matches!(driver_version(), Err(Error::NoDriver { .. })));
    });
}

#[test]
fn without_a_device() {
    with_driver("without_a_device", "no_device", || {
        assert_eq!(Device::count().unwrap(), 0);
        assert!(matches!(Device::open(2), Err(Error::NoDevice { requested: 2, found: 0, .. })));
    });
}

#[test]
fn an_old_device_is_refused_but_described() {
    with_driver("an_old_device_is_refused_but_described", "sm_60", || {
        assert_eq!(DeviceFacts::query(0).unwrap().major, 6);
        assert!(matches!(Device::open(0), Err(Error::ComputeCapability { major: 6, minor: 0, .. })));
    });
}

#[test]
fn an_old_driver_is_told_what_it_lacks() {
    with_driver("an_old_driver_is_told_what_it_lacks", "old", || {
        let device = Device::open(0).unwrap();
        Module::load(&device, "old enough", PTX).unwrap();
        let newer = PTX.replace(".version 7.0", ".version 7.8").replace("sm_70", "sm_90");
        let error = Module::load(&device, "too new", &newer).err().unwrap();
        let text = error.to_string();
        assert!(matches!(error, Error::DriverTooOld { driver: 11000, .. }), "{text}");
        assert!(text.contains("CUDA 11.0") && text.contains("11.8") && text.contains("sm_90"), "{text}");
    });
}
