//! Device memory, and copies to and from it.

use std::marker::PhantomData;

use bytemuck::Pod;
use cuda_shim::ffi;

use super::device::Device;
use super::driver;
use super::stream::Stream;
use crate::error::{Error, Result};

/// `len` elements of device memory, at an address that is a multiple of 256.
pub struct DeviceBuffer<T: Pod> {
    address: u64,
    len: usize,
    what: String,
    device: Device,
    elements: PhantomData<T>,
}

impl<T: Pod> DeviceBuffer<T> {
    /// Memory for `len` elements, with whatever it holds; `what` names it in messages. No memory is taken for
    /// no elements.
    ///
    /// Errors: `DeviceMemory` when there is not enough, or the driver's own.
    pub fn alloc(device: &Device, what: &str, len: usize) -> Result<DeviceBuffer<T>> {
        let _current = device.make_current()?;
        let bytes = len.saturating_mul(size_of::<T>());
        let mut address = 0;
        if bytes > 0 {
            // SAFETY: `address` is a device address that the driver sets, in the current context.
            let answer = unsafe { ffi::cuMemAlloc_v2(&mut address, bytes) };
            if answer as u32 == driver::OUT_OF_MEMORY {
                let (free, total) = device.memory_info()?;
                return Err(Error::DeviceMemory { what: what.to_owned(), bytes, free, total });
            }
            driver::check(format_args!("cuMemAlloc of {bytes} bytes for {what}"), answer)?;
        }
        Ok(DeviceBuffer {
            address,
            len,
            what: what.to_owned(),
            device: device.clone(),
            elements: PhantomData,
        })
    }

    /// Memory that holds `data`, copied on the stream before this returns.
    pub fn from_slice(stream: &Stream, what: &str, data: &[T]) -> Result<DeviceBuffer<T>> {
        let mut buffer = DeviceBuffer::alloc(stream.device(), what, data.len())?;
        buffer.upload(stream, data)?;
        Ok(buffer)
    }

    /// The device address of the first element, 0 for an empty buffer.
    pub fn as_ptr(&self) -> u64 {
        self.address
    }

    /// The device address of element `offset`, which may be one past the last. `Length` beyond that.
    pub fn at(&self, offset: usize) -> Result<u64> {
        self.range(offset, 0)
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Its size in bytes.
    pub fn bytes(&self) -> usize {
        self.len * size_of::<T>()
    }

    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Copies `data`, as many elements as the buffer has, to the device: behind the stream's work, and done
    /// on return.
    ///
    /// Errors: `Length`, or the driver's own, which may be that of a kernel launched before.
    pub fn upload(&mut self, stream: &Stream, data: &[T]) -> Result<()> {
        self.same_len(data.len())?;
        self.upload_at(stream, 0, data)
    }

    /// [`upload`](Self::upload) of a part, from element `offset` of the buffer.
    pub fn upload_at(&mut self, stream: &Stream, offset: usize, data: &[T]) -> Result<()> {
        // SAFETY: the copy is done before `data` is given back.
        unsafe { self.upload_async(stream, offset, data) }?;
        stream.synchronize()
    }

    /// Copies the whole buffer into `out`, of as many elements: behind the stream's work, and done on return.
    ///
    /// Errors: `Length`, or the driver's own, which may be that of a kernel launched before.
    pub fn download(&self, stream: &Stream, out: &mut [T]) -> Result<()> {
        self.same_len(out.len())?;
        self.download_at(stream, 0, out)
    }

    /// [`download`](Self::download) of a part, from element `offset` of the buffer.
    pub fn download_at(&self, stream: &Stream, offset: usize, out: &mut [T]) -> Result<()> {
        // SAFETY: the copy is done before `out` is given back.
        unsafe { self.download_async(stream, offset, out) }?;
        stream.synchronize()
    }

    /// Queues a copy of `data` to the device, from element `offset` of the buffer on.
    ///
    /// # Safety
    /// `data` must stay there, unchanged, until the stream has done the copy (each copy, if it was captured).
    pub unsafe fn upload_async(&mut self, stream: &Stream, offset: usize, data: &[T]) -> Result<()> {
        let to = self.range(offset, data.len())?;
        if size_of_val(data) == 0 {
            return Ok(());
        }
        let _current = self.device.make_current()?;
        // SAFETY: both ranges hold that many bytes; the caller keeps `data`.
        let answer = unsafe {
            ffi::cuMemcpyHtoDAsync_v2(to, data.as_ptr().cast(), size_of_val(data), stream.as_raw())
        };
        stream.check(format_args!("cuMemcpyHtoDAsync of {}", self.what), answer)
    }

    /// Queues a copy from the device into `out`, from element `offset` of the buffer on.
    ///
    /// # Safety
    /// `out` must stay there, unused, until the stream has done the copy (each copy, if it was captured).
    pub unsafe fn download_async(&self, stream: &Stream, offset: usize, out: &mut [T]) -> Result<()> {
        let from = self.range(offset, out.len())?;
        if size_of_val(out) == 0 {
            return Ok(());
        }
        let _current = self.device.make_current()?;
        // SAFETY: both ranges hold that many bytes, any of which make a `T: Pod`; the caller keeps `out`.
        let answer = unsafe {
            ffi::cuMemcpyDtoHAsync_v2(out.as_mut_ptr().cast(), from, size_of_val(out), stream.as_raw())
        };
        stream.check(format_args!("cuMemcpyDtoHAsync of {}", self.what), answer)
    }

    /// Queues a copy of another buffer of the same length and device. Both must stay until the stream has
    /// done it.
    pub fn copy_from(&mut self, stream: &Stream, source: &DeviceBuffer<T>) -> Result<()> {
        self.same_len(source.len)?;
        if self.bytes() == 0 {
            return Ok(());
        }
        let _current = self.device.make_current()?;
        // SAFETY: both are device memory of that many bytes.
        let answer =
            unsafe { ffi::cuMemcpyDtoDAsync_v2(self.address, source.address, self.bytes(), stream.as_raw()) };
        stream.check(format_args!("cuMemcpyDtoDAsync of {} from {}", self.what, source.what), answer)
    }

    /// Queues copies of the buffer's first `len` elements over all that follows, the last one cut where the buffer ends.
    ///
    /// Errors: `Length` when there are not as many; or the driver's own.
    pub(crate) fn repeat_first(&mut self, stream: &Stream, len: usize) -> Result<()> {
        self.range(0, len.max(1))?;
        let _current = self.device.make_current()?;
        let mut done = len.max(1);
        while done < self.len {
            let count = done.min(self.len - done);
            let (to, bytes) = (self.range(done, count)?, count * size_of::<T>());
            // SAFETY: both ranges are of the buffer, and do not overlap.
            let answer = unsafe { ffi::cuMemcpyDtoDAsync_v2(to, self.address, bytes, stream.as_raw()) };
            stream.check(format_args!("cuMemcpyDtoDAsync in {}", self.what), answer)?;
            done += count;
        }
        Ok(())
    }

    /// Queues the setting of every byte of the buffer to `value`.
    pub fn memset_u8(&mut self, stream: &Stream, value: u8) -> Result<()> {
        self.memset_u8_from(stream, 0, value)
    }

    /// [`memset_u8`](Self::memset_u8) of the elements from `offset` on.
    pub fn memset_u8_from(&mut self, stream: &Stream, offset: usize, value: u8) -> Result<()> {
        let address = self.range(offset, 0)?;
        let bytes = (self.len - offset) * size_of::<T>();
        if bytes == 0 {
            return Ok(());
        }
        let _current = self.device.make_current()?;
        // SAFETY: that many bytes of device memory begin there, any of which make a `T: Pod`.
        let answer = unsafe { ffi::cuMemsetD8Async(address, value, bytes, stream.as_raw()) };
        stream.check(format_args!("cuMemsetD8Async of {}", self.what), answer)
    }

    /// The address of element `offset`, if `count` elements follow it.
    fn range(&self, offset: usize, count: usize) -> Result<u64> {
        match offset.checked_add(count) {
            Some(end) if end <= self.len => Ok(self.address + (offset * size_of::<T>()) as u64),
            end => Err(Error::Length {
                tensor: self.what.clone(),
                found: end.unwrap_or(usize::MAX),
                accepted: format!("at most the {} elements of the buffer", self.len),
            }),
        }
    }

    fn same_len(&self, found: usize) -> Result<()> {
        if found == self.len {
            return Ok(());
        }
        let accepted = format!("{}, as many as the buffer", self.len);
        Err(Error::Length { tensor: self.what.clone(), found, accepted })
    }
}

impl<T: Pod> Drop for DeviceBuffer<T> {
    fn drop(&mut self) {
        if self.address != 0
            && let Ok(_current) = self.device.make_current()
        {
            // SAFETY: the memory is ours, of the current context; the driver lets work that was queued finish
            // first.
            unsafe { ffi::cuMemFree_v2(self.address) };
        }
    }
}
