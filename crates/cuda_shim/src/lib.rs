//! Every CUDA driver function that `cust` calls, and the few more that this workspace calls itself, as a
//! forwarder that finds the real function at its first call. A program that links this crate therefore needs
//! no `libcuda` to be built or started; where there is no driver, each function answers 100
//! (`CUDA_ERROR_NO_DEVICE`).
//!
//! * The library is `libcuda.so.1`, opened once and never closed. `libcuda.so` is not tried: in a toolkit it
//!   is a stub. The environment variable `KEYHEAD_LIBCUDA` names another file instead.
//! * A function that the driver lacks answers 500 (`CUDA_ERROR_NOT_FOUND`); an old driver fails there and
//!   nowhere else.
//! * `cust_raw` declares results as an enum of CUDA 11.4's codes, so a later code would be undefined
//!   behaviour: it is answered as 999 (`CUDA_ERROR_UNKNOWN`). [`last_error`] keeps the code that the driver
//!   really gave.
//!
//! `cust` asks the linker for `-lcuda`: `lib64/libcuda.so` beside this crate is a linker script that
//! satisfies it, and `CUDA_LIBRARY_PATH` (set by the workspace's `.cargo/config.toml`) shows `cust` the way
//! to it.

use std::cell::Cell;
use std::env;
use std::error::Error;
use std::ffi::c_int;
use std::sync::OnceLock;

use libloading::Library;

/// A driver function's answer: 0, or one of the error codes of CUDA 11.4.
pub type CUresult = c_int;

const NO_DEVICE: CUresult = 100;
const NOT_FOUND: CUresult = 500;
const UNKNOWN: CUresult = 999;

/// What the driver answered to a call that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawError {
    /// The driver function's name, such as `cuMemAlloc_v2`.
    pub call: &'static str,
    /// The code as the driver gave it, known to CUDA 11.4 or not.
    pub code: u32,
}

thread_local! {
    static LAST_ERROR: Cell<Option<RawError>> = const { Cell::new(None) };
}

/// The last call of this thread that failed; a later call that succeeds does not clear it.
pub fn last_error() -> Option<RawError> {
    LAST_ERROR.get()
}

/// Forgets this thread's [`last_error`].
pub fn clear_error() {
    LAST_ERROR.set(None);
}

struct Driver {
    name: String,
    library: Library,
}

fn driver() -> Result<&'static Driver, &'static str> {
    static DRIVER: OnceLock<Result<Driver, String>> = OnceLock::new();
    let open = || {
        let name = env::var("KEYHEAD_LIBCUDA").ok().filter(|name| !name.is_empty());
        let name = name.unwrap_or_else(|| "libcuda.so.1".to_owned());
        // SAFETY: opening a library runs its initialisers, and NVIDIA's driver may be opened by any thread at
        // any time. A file that the user names instead is the user's to answer for, as with LD_LIBRARY_PATH.
        match unsafe { Library::new(&name) } {
            Ok(library) => Ok(Driver { name, library }),
            // The source is what the dynamic loader says: which file, and why.
            Err(error) => Err(error.source().map_or(error.to_string(), ToString::to_string)),
        }
    };
    DRIVER.get_or_init(open).as_ref().map_err(String::as_str)
}

/// The driver library's file name, or why it cannot be opened.
pub fn library() -> Result<&'static str, &'static str> {
    driver().map(|driver| driver.name.as_str())
}

/// The address of a driver function, whatever its arguments.
type Address = unsafe extern "C" fn();

fn find(name: &str) -> Result<Address, CUresult> {
    let driver = driver().map_err(|_| NO_DEVICE)?;
    // SAFETY: the symbol is only held as an address here; the forwarder gives it the type that the driver's
    // interface documents for this name. The library is never closed, so the address stays good.
    unsafe { driver.library.get::<Address>(name) }.map(|symbol| *symbol).map_err(|_| NOT_FOUND)
}

/// Notes a failure, and answers with a code that `cust_raw`'s enum has.
fn report(call: &'static str, code: CUresult) -> CUresult {
    if code == 0 {
        return 0;
    }
    LAST_ERROR.set(Some(RawError { call, code: code as u32 }));
    if is_known(code) { code } else { UNKNOWN }
}

/// Whether CUDA 11.4 has this code.
fn is_known(code: CUresult) -> bool {
    matches!(
        code,
        0..=8
            | 34
            | 100..=102
            | 200..=202
            | 205..=224
            | 300..=304
            | 400
            | 401
            | 500
            | 600
            | 700..=705
            | 708..=720
            | 800..=809
            | 900..=911
            | 999
    )
}

macro_rules! forwarders {
    ($($name:ident($($argument:ident: $type:ty),*);)*) => {
        /// The names of all functions in [`ffi`].
        pub const FUNCTIONS: &[&str] = &[$(stringify!($name)),*];

        /// The driver's functions: names and arguments as in its documentation, enums as the integers they
        /// are.
        ///
        /// # Safety
        /// That of the driver function of the same name: pointers must be good for what it reads and writes,
        /// handles must be alive.
        #[allow(non_snake_case, clippy::missing_safety_doc, clippy::too_many_arguments)]
        pub mod ffi {
            use std::ffi::{c_char, c_int, c_uint, c_void};
            use std::sync::OnceLock;

            use super::{Address, CUresult, find, report};

            /// A context, stream, event, module, function, graph...: opaque, the driver's own.
            pub type Handle = *mut c_void;

            $(
                #[unsafe(no_mangle)]
                pub unsafe extern "C" fn $name($($argument: $type),*) -> CUresult {
                    static ADDRESS: OnceLock<Result<Address, CUresult>> = OnceLock::new();
                    let answer = match *ADDRESS.get_or_init(|| find(stringify!($name))) {
                        // SAFETY: the table has this function's documented arguments, and the caller keeps
                        // its terms.
                        Ok(address) => unsafe {
                            std::mem::transmute::<Address, unsafe extern "C" fn($($type),*) -> CUresult>(address)(
                                $($argument),*
                            )
                        },
                        Err(code) => code,
                    };
                    report(stringify!($name), answer)
                }
            )*
        }
    };
}

// Arguments as declared by cust_raw 0.11.3 (CUDA 11.4); later drivers keep these symbols as they are.
forwarders! {
    cuArray3DCreate_v2(handle: *mut Handle, allocate_array: *const c_void);
    cuArray3DGetDescriptor_v2(array_descriptor: *mut c_void, array: Handle);
    cuArrayDestroy(array: Handle);
    cuCtxCreate_v2(context: *mut Handle, flags: c_uint, device: c_int);
    cuCtxDestroy_v2(context: Handle);
    cuCtxGetApiVersion(context: Handle, version: *mut c_uint);
    cuCtxGetCacheConfig(config: *mut c_int);
    cuCtxGetCurrent(context: *mut Handle);
    cuCtxGetDevice(device: *mut c_int);
    cuCtxGetFlags(flags: *mut c_uint);
    cuCtxGetLimit(value: *mut usize, limit: c_int);
    cuCtxGetSharedMemConfig(config: *mut c_int);
    cuCtxGetStreamPriorityRange(least_priority: *mut c_int, greatest_priority: *mut c_int);
    cuCtxPopCurrent_v2(context: *mut Handle);
    cuCtxPushCurrent_v2(context: Handle);
    cuCtxSetCacheConfig(config: c_int);
    cuCtxSetCurrent(context: Handle);
    cuCtxSetLimit(limit: c_int, value: usize);
    cuCtxSetSharedMemConfig(config: c_int);
    cuCtxSynchronize();
    cuDestroyExternalMemory(ext_mem: Handle);
    cuDeviceGet(device: *mut c_int, ordinal: c_int);
    cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: c_int);
    cuDeviceGetCount(count: *mut c_int);
    cuDeviceGetName(name: *mut c_char, len: c_int, device: c_int);
    cuDeviceGetUuid(uuid: *mut c_void, device: c_int);
    cuDevicePrimaryCtxRelease_v2(device: c_int);
    cuDevicePrimaryCtxReset_v2(device: c_int);
    cuDevicePrimaryCtxRetain(context: *mut Handle, device: c_int);
    cuDevicePrimaryCtxSetFlags_v2(device: c_int, flags: c_uint);
    cuDeviceTotalMem_v2(bytes: *mut usize, device: c_int);
    cuDriverGetVersion(driver_version: *mut c_int);
    cuEventCreate(event: *mut Handle, flags: c_uint);
    cuEventDestroy_v2(event: Handle);
    cuEventElapsedTime(milliseconds: *mut f32, start: Handle, end: Handle);
    cuEventQuery(event: Handle);
    cuEventRecord(event: Handle, stream: Handle);
    cuEventSynchronize(event: Handle);
    cuExternalMemoryGetMappedBuffer(address: *mut u64, ext_mem: Handle, buffer_desc: *const c_void);
    cuFuncGetAttribute(value: *mut c_int, attribute: c_int, function: Handle);
    cuFuncSetAttribute(function: Handle, attribute: c_int, value: c_int);
    cuFuncSetCacheConfig(function: Handle, config: c_int);
    cuFuncSetSharedMemConfig(function: Handle, config: c_int);
    cuGetErrorName(error: c_int, text: *mut *const c_char);
    cuGetErrorString(error: c_int, text: *mut *const c_char);
    cuGraphAddKernelNode(
        graph_node: *mut Handle, graph: Handle, dependencies: *const Handle, num_dependencies: usize,
        node_params: *const c_void
    );
    cuGraphCreate(graph: *mut Handle, flags: c_uint);
    cuGraphDebugDotPrint(graph: Handle, path: *const c_char, flags: c_uint);
    cuGraphDestroy(graph: Handle);
    cuGraphExecDestroy(graph_exec: Handle);
    cuGraphGetEdges(graph: Handle, from: *mut Handle, to: *mut Handle, num_edges: *mut usize);
    cuGraphGetNodes(graph: Handle, nodes: *mut Handle, num_nodes: *mut usize);
    cuGraphInstantiateWithFlags(graph_exec: *mut Handle, graph: Handle, flags: u64);
    cuGraphKernelNodeGetParams(node: Handle, node_params: *mut c_void);
    cuGraphLaunch(graph_exec: Handle, stream: Handle);
    cuGraphNodeGetType(node: Handle, kind: *mut c_int);
    cuImportExternalMemory(ext_mem_out: *mut Handle, mem_handle_desc: *const c_void);
    cuInit(flags: c_uint);
    cuLaunchHostFunc(stream: Handle, function: Handle, user_data: *mut c_void);
    cuLaunchKernel(
        function: Handle, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint,
        block_z: c_uint, shared_mem_bytes: c_uint, stream: Handle, kernel_params: *mut Handle,
        extra: *mut Handle
    );
    cuLinkAddData_v2(
        state: Handle, kind: c_int, data: *mut c_void, size: usize, name: *const c_char, num_options: c_uint,
        options: *mut c_int, option_values: *mut Handle
    );
    cuLinkComplete(state: Handle, cubin_out: *mut Handle, size_out: *mut usize);
    cuLinkCreate_v2(
        num_options: c_uint, options: *mut c_int, option_values: *mut Handle, state_out: *mut Handle
    );
    cuLinkDestroy(state: Handle);
    cuMemAdvise(address: u64, count: usize, advice: c_int, device: c_int);
    cuMemAlloc_v2(address: *mut u64, bytes: usize);
    cuMemAllocAsync(address: *mut u64, bytes: usize, stream: Handle);
    cuMemAllocHost_v2(pointer: *mut Handle, bytes: usize);
    cuMemAllocManaged(address: *mut u64, bytes: usize, flags: c_uint);
    cuMemcpy2D_v2(copy: *const c_void);
    cuMemcpyAtoH_v2(dst_host: *mut c_void, src_array: Handle, src_offset: usize, bytes: usize);
    cuMemcpyDtoD_v2(dst_device: u64, src_device: u64, bytes: usize);
    cuMemcpyDtoDAsync_v2(dst_device: u64, src_device: u64, bytes: usize, stream: Handle);
    cuMemcpyDtoH_v2(dst_host: *mut c_void, src_device: u64, bytes: usize);
    cuMemcpyDtoHAsync_v2(dst_host: *mut c_void, src_device: u64, bytes: usize, stream: Handle);
    cuMemcpyHtoA_v2(dst_array: Handle, dst_offset: usize, src_host: *const c_void, bytes: usize);
    cuMemcpyHtoD_v2(dst_device: u64, src_host: *const c_void, bytes: usize);
    cuMemcpyHtoDAsync_v2(dst_device: u64, src_host: *const c_void, bytes: usize, stream: Handle);
    cuMemFree_v2(address: u64);
    cuMemFreeAsync(address: u64, stream: Handle);
    cuMemFreeHost(pointer: *mut c_void);
    cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
    cuMemPrefetchAsync(address: u64, count: usize, dst_device: c_int, stream: Handle);
    cuMemsetD16_v2(dst_device: u64, value: u16, count: usize);
    cuMemsetD16Async(dst_device: u64, value: u16, count: usize, stream: Handle);
    cuMemsetD32_v2(dst_device: u64, value: c_uint, count: usize);
    cuMemsetD32Async(dst_device: u64, value: c_uint, count: usize, stream: Handle);
    cuMemsetD8_v2(dst_device: u64, value: u8, count: usize);
    cuMemsetD8Async(dst_device: u64, value: u8, count: usize, stream: Handle);
    cuModuleGetFunction(function: *mut Handle, module: Handle, name: *const c_char);
    cuModuleGetGlobal_v2(address: *mut u64, bytes: *mut usize, module: Handle, name: *const c_char);
    cuModuleLoad(module: *mut Handle, path: *const c_char);
    cuModuleLoadData(module: *mut Handle, image: *const c_void);
    cuModuleLoadDataEx(
        module: *mut Handle, image: *const c_void, num_options: c_uint, options: *mut c_int,
        option_values: *mut Handle
    );
    cuModuleUnload(module: Handle);
    cuOccupancyAvailableDynamicSMemPerBlock(
        dynamic_smem_size: *mut usize, function: Handle, num_blocks: c_int, block_size: c_int
    );
    cuOccupancyMaxActiveBlocksPerMultiprocessor(
        num_blocks: *mut c_int, function: Handle, block_size: c_int, dynamic_smem_size: usize
    );
    cuOccupancyMaxPotentialBlockSize(
        min_grid_size: *mut c_int, block_size: *mut c_int, function: Handle,
        block_size_to_dynamic_smem_size: Handle, dynamic_smem_size: usize, block_size_limit: c_int
    );
    cuStreamBeginCapture_v2(stream: Handle, mode: c_int);
    cuStreamCreate(stream: *mut Handle, flags: c_uint);
    cuStreamCreateWithPriority(stream: *mut Handle, flags: c_uint, priority: c_int);
    cuStreamDestroy_v2(stream: Handle);
    cuStreamEndCapture(stream: Handle, graph: *mut Handle);
    cuStreamGetFlags(stream: Handle, flags: *mut c_uint);
    cuStreamGetPriority(stream: Handle, priority: *mut c_int);
    cuStreamSynchronize(stream: Handle);
    cuStreamWaitEvent(stream: Handle, event: Handle, flags: c_uint);
    cuSurfObjectCreate(surf_object: *mut u64, res_desc: *const c_void);
    cuSurfObjectDestroy(surf_object: u64);
    cuSurfObjectGetResourceDesc(res_desc: *mut c_void, surf_object: u64);
    cuTexObjectCreate(
        tex_object: *mut u64, res_desc: *const c_void, tex_desc: *const c_void, res_view_desc: *const c_void
    );
    cuTexObjectDestroy(tex_object: u64);
    cuTexObjectGetResourceDesc(res_desc: *mut c_void, tex_object: u64);
}
