//! A driver without a GPU, for tests: built as a `cdylib` and named by KEYHEAD_LIBCUDA. Device memory is host
//! memory, and a launch calls a Rust function of the kernel's name. FAKE_DRIVER chooses what is wrong with
//! it: `no_device`, `sm_60`, or `old` (CUDA 11.0). Some functions are missing, as they are from old drivers;
//! and `cuCtxSynchronize` always answers 912, which CUDA 11.4 does not know. The cache configuration it gives
//! is the number of times that the primary context is retained.
#![allow(non_snake_case, unused_unsafe)]

use std::alloc::{Layout, alloc, dealloc};
use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

type Handle = *mut c_void;

const CONTEXT: usize = 0xc0de;
const MEMORY: usize = 1 << 20;

static RETAINED: AtomicUsize = AtomicUsize::new(0);
static FAULTED: AtomicBool = AtomicBool::new(false);
static ALLOCATED: Mutex<Option<HashMap<u64, usize>>> = Mutex::new(None);
static CAPTURE: Mutex<Option<Vec<Launch>>> = Mutex::new(None);

thread_local! { static CURRENT: Cell<usize> = const { Cell::new(0) }; }

struct Function {
    name: String,
    dynamic_limit: usize,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Params {
    numbers: u64,
    len: u32,
}

#[derive(Clone)]
struct Launch {
    name: String,
    params: Params,
}

impl Launch {
    unsafe fn run(&self) {
        match self.name.as_str() {
            "double_all" => {
                for i in 0..self.params.len as usize {
                    unsafe { *(self.params.numbers as *mut f32).add(i) *= 2.0 };
                }
            }
            "fault" => FAULTED.store(true, Ordering::SeqCst),
            other => panic!("no kernel {other}"),
        }
    }
}

fn mode(name: &str) -> bool {
    std::env::var("FAKE_DRIVER").is_ok_and(|mode| mode == name)
}

/// 201 without a current context, 700 after a fault.
fn state() -> c_int {
    match (CURRENT.get(), FAULTED.load(Ordering::SeqCst)) {
        (0, _) => 201,
        (_, true) => 700,
        _ => 0,
    }
}

macro_rules! driver {
    ($(fn $name:ident($($argument:ident: $type:ty),*) $body:block)*) => {
        $(
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($argument: $type),*) -> c_int { unsafe { $body } }
        )*
    };
}

driver! {
    fn cuInit(_flags: c_uint) { if mode("no_device") { 100 } else { 0 } }
    fn cuDriverGetVersion(version: *mut c_int) { *version = if mode("old") { 11000 } else { 13000 }; 0 }
    fn cuGetErrorName(code: c_int, text: *mut *const c_char) {
        let known = match code {
            201 => c"CUDA_ERROR_INVALID_CONTEXT",
            700 => c"CUDA_ERROR_ILLEGAL_ADDRESS",
            912 => c"CUDA_ERROR_INVALID_CLUSTER_SIZE",
            218 => c"CUDA_ERROR_INVALID_PTX",
            _ => { *text = std::ptr::null(); return 1 }
        };
        *text = known.as_ptr();
        0
    }
    fn cuGetErrorString(_code: c_int, text: *mut *const c_char) { *text = c"a text".as_ptr(); 0 }

    fn cuDeviceGetCount(count: *mut c_int) { *count = 1; 0 }
    fn cuDeviceGet(device: *mut c_int, _ordinal: c_int) { *device = 7; 0 }
    fn cuDeviceGetName(name: *mut c_char, _len: c_int, _device: c_int) {
        std::ptr::copy_nonoverlapping(c"Fake GPU".as_ptr(), name, 9); 0
    }
    fn cuDeviceTotalMem_v2(bytes: *mut usize, _device: c_int) { *bytes = MEMORY; 0 }
    fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: c_int) {
        if device != 7 { return 101 }
        *value = match attribute {
            75 => if mode("sm_60") { 6 } else { 9 },
            76 => 0, 16 => 132, 97 => 232448, 81 => 233472, 82 => 65536, 38 => 1000,
            13 => 1980000, 36 => 3201000, 37 => 6144,
            _ => return 1,
        };
        0
    }

    fn cuDevicePrimaryCtxRetain(context: *mut Handle, _device: c_int) {
        RETAINED.fetch_add(1, Ordering::SeqCst);
        *context = CONTEXT as Handle;
        0
    }
    fn cuDevicePrimaryCtxRelease_v2(_device: c_int) { RETAINED.fetch_sub(1, Ordering::SeqCst); 0 }
    fn cuCtxGetCurrent(context: *mut Handle) { *context = CURRENT.get() as Handle; 0 }
    fn cuCtxSetCurrent(context: Handle) { CURRENT.set(context as usize); 0 }
    fn cuCtxSynchronize() { 912 }
    fn cuCtxGetCacheConfig(retained: *mut c_int) { *retained = RETAINED.load(Ordering::SeqCst) as c_int; 0 }

    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) {
        let used: usize = ALLOCATED.lock().unwrap().iter().flatten().map(|(_, bytes)| bytes).sum();
        (*free, *total) = (MEMORY - used, MEMORY);
        state()
    }
    fn cuMemAlloc_v2(address: *mut u64, bytes: usize) {
        if state() != 0 { return state() }
        let mut allocated = ALLOCATED.lock().unwrap();
        let allocated = allocated.get_or_insert_default();
        if bytes == 0 { return 1 }
        if bytes > MEMORY - allocated.values().sum::<usize>() { return 2 }
        *address = alloc(Layout::from_size_align(bytes, 256).unwrap()) as u64;
        allocated.insert(*address, bytes);
        0
    }
    fn cuMemFree_v2(address: u64) {
        if CURRENT.get() == 0 { return 201 }
        let mut allocated = ALLOCATED.lock().unwrap();
        let Some(bytes) = allocated.get_or_insert_default().remove(&address) else { return 1 };
        dealloc(address as *mut u8, Layout::from_size_align(bytes, 256).unwrap());
        0
    }
    fn cuMemcpyHtoDAsync_v2(to: u64, from: *const c_void, bytes: usize, _stream: Handle) {
        if state() == 0 { std::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, bytes) }
        state()
    }
    fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: u64, bytes: usize, _stream: Handle) {
        if state() == 0 { std::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, bytes) }
        state()
    }
    fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, _stream: Handle) {
        if state() == 0 { std::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, bytes) }
        state()
    }
    fn cuMemsetD8Async(to: u64, value: u8, count: usize, _stream: Handle) {
        if state() == 0 { std::ptr::write_bytes(to as *mut u8, value, count) }
        state()
    }

    fn cuModuleLoadDataEx(
        module: *mut Handle, image: *const c_void, count: c_uint, options: *mut c_int, values: *mut Handle
    ) {
        if state() != 0 { return state() }
        let text = CStr::from_ptr(image as *const c_char).to_str().unwrap().to_owned();
        if mode("old") && !text.contains(".version 7.0") { return 222 }
        if text.contains("nonsense") {
            let option = |number| (0..count as usize).find(|&i| *options.add(i) == number).unwrap();
            let (buffer, size) = (*values.add(option(5)), *values.add(option(6)) as usize);
            let log = c"ptxas application ptx input, line 4; error : Parsing error near 'nonsense'";
            assert!(size > log.count_bytes());
            std::ptr::copy_nonoverlapping(log.as_ptr(), buffer as *mut c_char, log.count_bytes() + 1);
            return 218;
        }
        *module = Box::into_raw(Box::new(text)) as Handle;
        0
    }
    fn cuModuleUnload(module: Handle) {
        if CURRENT.get() == 0 { return 201 }
        drop(Box::from_raw(module as *mut String));
        0
    }
    fn cuModuleGetFunction(function: *mut Handle, module: Handle, name: *const c_char) {
        let name = CStr::from_ptr(name).to_str().unwrap().to_owned();
        if !(*(module as *const String)).contains(&format!(".entry {name}(")) { return 500 }
        *function = Box::into_raw(Box::new(Function { name, dynamic_limit: 48 << 10 })) as Handle;
        state()
    }
    fn cuFuncGetAttribute(value: *mut c_int, attribute: c_int, function: Handle) {
        let function = &*(function as *const Function);
        *value = match attribute {
            0 => 1024, 1 => 0, 3 => 0, 4 => 32,
            8 => function.dynamic_limit as c_int,
            _ => return 1,
        };
        state()
    }
    fn cuFuncSetAttribute(function: Handle, attribute: c_int, value: c_int) {
        if attribute != 8 || value > 232448 { return 1 }
        (*(function as *mut Function)).dynamic_limit = value as usize;
        state()
    }
    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
        blocks: *mut c_int, function: Handle, block_size: c_int, dynamic_shared: usize
    ) {
        let limit = (*(function as *const Function)).dynamic_limit;
        let by_shared = if dynamic_shared > limit { 0 } else { 233472 / (dynamic_shared + 1024) };
        *blocks = (2048 / block_size).min(by_shared as c_int).min(32);
        state()
    }
    fn cuLaunchKernel(
        function: Handle, grid_x: c_uint, _gy: c_uint, _gz: c_uint, _bx: c_uint, _by: c_uint, _bz: c_uint,
        shared: c_uint, _stream: Handle, params: *mut Handle, _extra: *mut Handle
    ) {
        let function = &*(function as *const Function);
        if grid_x == 0 || shared as usize > function.dynamic_limit { return 1 }
        if state() != 0 { return state() }
        let launch = Launch { name: function.name.clone(), params: *(*params as *const Params) };
        match CAPTURE.lock().unwrap().as_mut() {
            Some(captured) => captured.push(launch),
            None => launch.run(),
        }
        0
    }

    fn cuStreamCreate(stream: *mut Handle, flags: c_uint) {
        *stream = 0x51 as Handle;
        if flags == 1 { state() } else { 1 }
    }
    fn cuStreamDestroy_v2(_stream: Handle) { state() }
    fn cuStreamSynchronize(_stream: Handle) { state() }
    fn cuStreamWaitEvent(_stream: Handle, _event: Handle, _flags: c_uint) { state() }
    fn cuEventCreate(event: *mut Handle, _flags: c_uint) { *event = 0xe as Handle; state() }
    fn cuEventDestroy_v2(_event: Handle) { state() }
    fn cuEventRecord(_event: Handle, _stream: Handle) { state() }
    fn cuEventSynchronize(_event: Handle) { state() }
    fn cuEventElapsedTime(milliseconds: *mut f32, _start: Handle, _end: Handle) {
        *milliseconds = 1.5;
        state()
    }
    fn cuStreamBeginCapture_v2(_stream: Handle, _mode: c_int) {
        *CAPTURE.lock().unwrap() = Some(Vec::new());
        state()
    }
    fn cuStreamEndCapture(_stream: Handle, graph: *mut Handle) {
        let Some(captured) = CAPTURE.lock().unwrap().take() else { return 401 };
        *graph = Box::into_raw(Box::new(captured)) as Handle;
        state()
    }
    fn cuGraphInstantiateWithFlags(exec: *mut Handle, graph: Handle, _flags: u64) {
        *exec = Box::into_raw(Box::new((*(graph as *const Vec<Launch>)).clone())) as Handle;
        state()
    }
    fn cuGraphLaunch(exec: Handle, _stream: Handle) {
        (*(exec as *const Vec<Launch>)).iter().for_each(|launch| launch.run());
        state()
    }
    fn cuGraphDestroy(graph: Handle) { drop(Box::from_raw(graph as *mut Vec<Launch>)); 0 }
    fn cuGraphExecDestroy(exec: Handle) { drop(Box::from_raw(exec as *mut Vec<Launch>)); 0 }
}
