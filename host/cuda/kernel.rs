//! A kernel of a loaded module: what it needs, how many of its blocks fit, its launch.

use std::ffi::{c_int, c_void};
use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, PoisonError};

use cuda_shim::ffi::{self, Handle};

use super::driver;
use super::module::Module;
use super::stream::Stream;
use crate::error::{Error, Result};

/// CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES.
const DYNAMIC_SHARED_LIMIT: c_int = 8;

/// A kernel. Clones share it; it keeps its module loaded.
#[derive(Clone)]
pub struct Kernel {
    inner: Arc<Inner>,
}

struct Inner {
    function: Handle,
    name: Arc<str>,
    module: Module,
    max_threads: u32,
    static_shared: u32,
    local_bytes: u32,
    registers: u32,
    /// The dynamic shared memory that the driver grants this function now; it is only ever raised.
    dynamic_limit: AtomicU32,
}

// SAFETY: a function handle is a name for code in a loaded module; any thread may use it.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl Kernel {
    /// # Safety
    /// `function` must be a function of `module`, and the module's context must be current.
    pub(super) unsafe fn new(module: &Module, name: &str, function: Handle) -> Result<Kernel> {
        // SAFETY: the caller's promise.
        let ask = |number| unsafe { attribute(function, name, number) };
        Ok(Kernel {
            inner: Arc::new(Inner {
                function,
                name: name.into(),
                module: module.clone(),
                max_threads: ask(0)?,
                static_shared: ask(1)?,
                local_bytes: ask(3)?,
                registers: ask(4)?,
                dynamic_limit: ask(DYNAMIC_SHARED_LIMIT)?.into(),
            }),
        })
    }

    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// 32-bit registers of one thread.
    pub fn registers(&self) -> u32 {
        self.inner.registers
    }

    /// Static shared memory of one block, in bytes.
    pub fn static_shared(&self) -> u32 {
        self.inner.static_shared
    }

    /// Local memory (spilled registers, arrays that are indexed) of one thread, in bytes.
    pub fn local_bytes(&self) -> u32 {
        self.inner.local_bytes
    }

    /// The most threads a block of this kernel can have, by its registers and launch bounds.
    pub fn max_threads(&self) -> u32 {
        self.inner.max_threads
    }

    /// How many blocks of `block_threads` threads and `dynamic_shared` bytes one multiprocessor holds at a
    /// time; 0 when one does not fit.
    ///
    /// Errors: `Argument` when the shared memory exceeds what a block can opt in to, or the driver's own.
    pub fn occupancy(&self, block_threads: u32, dynamic_shared: usize) -> Result<u32> {
        let _current = self.inner.module.inner.device.make_current()?;
        self.allow_dynamic_shared(dynamic_shared)?;
        let mut blocks = 0;
        // SAFETY: `blocks` is a C int, and the function is loaded in the current context.
        let answer = unsafe {
            ffi::cuOccupancyMaxActiveBlocksPerMultiprocessor(
                &mut blocks,
                self.inner.function,
                block_threads as c_int,
                dynamic_shared,
            )
        };
        driver::check(
            format_args!("cuOccupancyMaxActiveBlocksPerMultiprocessor of `{}`", self.name()),
            answer,
        )?;
        Ok(blocks.max(0) as u32)
    }

    /// Queues the kernel on a stream: `grid` blocks of `block` threads, `dynamic_shared` bytes of dynamic
    /// shared memory a block (more than 48 KiB is opted in to), and a pointer to each argument. An empty grid
    /// is no launch, and no error.
    ///
    /// Errors: `Argument` when the block or its shared memory is larger than the kernel can have, or the
    /// driver's own. What goes wrong while the kernel runs is reported by a later call on the stream.
    ///
    /// # Safety
    /// `args` must point at the kernel's arguments: as many, each of the size and meaning that the kernel
    /// declares. The memory they name must be there, and used by nothing else in a way that the kernel does
    /// not allow for, until the kernel has run. The stream must be of the kernel's device.
    pub unsafe fn launch(
        &self,
        stream: &Stream,
        grid: [u32; 3],
        block: [u32; 3],
        dynamic_shared: u32,
        args: &mut [*mut c_void],
    ) -> Result<()> {
        if grid.contains(&0) {
            return Ok(());
        }
        let threads = block.iter().fold(1u64, |product, &size| product.saturating_mul(size.into()));
        if threads == 0 || threads > self.inner.max_threads.into() {
            return Err(Error::argument(
                "block",
                format!("{block:?}, {threads} threads"),
                format!("1 to {} threads for kernel `{}`", self.inner.max_threads, self.inner.name),
            ));
        }
        let _current = self.inner.module.inner.device.make_current()?;
        self.allow_dynamic_shared(dynamic_shared as usize)?;
        // SAFETY: the function is loaded in the current context, the stream lives, and the arguments are as
        // the caller promises; the driver copies them before it returns.
        let answer = unsafe {
            ffi::cuLaunchKernel(
                self.inner.function,
                grid[0],
                grid[1],
                grid[2],
                block[0],
                block[1],
                block[2],
                dynamic_shared,
                stream.as_raw(),
                args.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        };
        let name = &self.inner.name;
        let with =
            format_args!("grid {grid:?}, block {block:?}, {dynamic_shared} bytes of dynamic shared memory");
        stream.check(format_args!("cuLaunchKernel of `{name}` ({with})"), answer)?;
        stream.note(name);
        Ok(())
    }

    /// [`launch`](Kernel::launch) for a kernel whose one argument is a `repr(C)` record, passed by value.
    ///
    /// # Safety
    /// As for `launch`: `P` must be the record that the kernel declares, and what it points at must be there.
    pub unsafe fn launch_with<P: Copy>(
        &self,
        stream: &Stream,
        grid: [u32; 3],
        block: [u32; 3],
        dynamic_shared: u32,
        params: &P,
    ) -> Result<()> {
        let mut args = [(&raw const *params).cast_mut().cast()];
        // SAFETY: the caller's promise; the driver only reads the record.
        unsafe { self.launch(stream, grid, block, dynamic_shared, &mut args) }
    }

    /// Raises the function's limit of dynamic shared memory to `bytes` if it is lower. The limit is the
    /// function's, not the launch's: lowering it would break a launch that another thread is about to make.
    fn allow_dynamic_shared(&self, bytes: usize) -> Result<()> {
        let Inner { function, name, module, static_shared, dynamic_limit, .. } = &*self.inner;
        if bytes <= dynamic_limit.load(Ordering::Relaxed) as usize {
            return Ok(());
        }
        let most = module.inner.device.facts().shared_per_block_optin.saturating_sub(*static_shared);
        if bytes > most as usize {
            return Err(Error::argument(
                "dynamic_shared",
                format!("{bytes} bytes"),
                format!("up to {most} bytes for kernel `{name}` on this device"),
            ));
        }
        let _raising = module.inner.raising.lock().unwrap_or_else(PoisonError::into_inner);
        // The function may have been asked for twice: then another `Kernel` may have raised its limit.
        // SAFETY: the callers have made the context current, and the function is loaded in it.
        let mut limit = unsafe { attribute(*function, name, DYNAMIC_SHARED_LIMIT) }?;
        if bytes > limit as usize {
            // SAFETY: as above.
            let answer = unsafe { ffi::cuFuncSetAttribute(*function, DYNAMIC_SHARED_LIMIT, bytes as c_int) };
            driver::check(format_args!("cuFuncSetAttribute of `{name}` to {bytes} bytes shared"), answer)?;
            limit = bytes as u32;
        }
        dynamic_limit.fetch_max(limit, Ordering::Relaxed);
        Ok(())
    }
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Kernel({} of {})", self.inner.name, self.inner.module.name())
    }
}

/// A function attribute by its number in the driver's interface (CU_FUNC_ATTRIBUTE_...).
///
/// # Safety
/// `function` must be loaded in the current context.
unsafe fn attribute(function: Handle, name: &str, number: c_int) -> Result<u32> {
    let mut value = 0;
    // SAFETY: `value` is a C int; the function is the caller's promise.
    let answer = unsafe { ffi::cuFuncGetAttribute(&mut value, number, function) };
    driver::check(format_args!("cuFuncGetAttribute({number}) of `{name}`"), answer)?;
    Ok(value.max(0) as u32)
}
