//! Who makes an operation's copies: copy engines, a kernel for this once, or the one that stays.

use std::sync::atomic::Ordering::{Acquire, Relaxed};

use cudarc::driver::sys::CUstream;

use super::order::refuse_capture;
use super::{Operation, Start};
use crate::copy::{Direction, Within};
use crate::cuda::context::Context;
use crate::cuda::copier;
use crate::cuda::kernels::{Pieces, Strides, Work};
use crate::cuda::landing::{self, Landing};
use crate::cuda::pieces::{Blocks, Piece, issue_batch};
use crate::cuda::status::Failure;
use crate::cuda::stretch::Stretch;
use crate::location::MemoryClass;

impl Operation {
    /// Makes a small copy by the CPU's loads or stores, if that can be: the memory is mapped, and nothing that the copy has
    /// to come after is left to do. It is over then.
    pub(super) fn copy_mapped(&mut self, context: &Context) -> Result<bool, Failure> {
        let Start { at, direction, .. } = self.start;
        let only = if let [piece] = self.pieces[..] { Some(piece) } else { None };
        let only = only.filter(|piece| {
            piece.rows == 1 && self.bytes == piece.width && context.mapped.may(context, direction, piece.width)
        });
        // Without anything of ours under way an earlier batch of the operation has not only waited, but is over. And where
        // there is something, copies follow each other, which streams have overlap.
        let own = at.class == MemoryClass::Device && at.context == context.id;
        let Some(piece) = only.filter(|_| own && context.under_way.load(Acquire) == 0) else {
            context.mapped.look_after(context);
            return Ok(false);
        };
        let ready = || if self.start.first { self.may_begin(context) } else { Ok(context.alive()) };
        // SAFETY: one row between host memory and an allocation of the context's own, both valid and left alone by the
        // promise of whoever added it.
        unsafe { context.mapped.copy(context, &piece, direction, ready) }
    }

    pub(super) fn issue(&mut self, context: &Context) -> Result<(), Failure> {
        let driver = context.driver;
        let small = self.suits_the_copier(context);
        // It waits for no stream: what must be ordered is its own if the stream is found idle.
        if small
            && context.copier.runs()
            && (!self.start.first || self.may_begin(context)?)
            && context.copier.post(&self.pieces, &mut self.posted)
        {
            return Ok(());
        }
        let _scope = context.enter()?;
        if small {
            context.copier.want(context);
        }
        if self.start.first {
            refuse_capture(driver, || self.event(driver))?;
        }
        self.event(driver)?;
        self.by_engine = true;
        if self.start.direction == Direction::DeviceToDevice || !self.stretches.is_empty() {
            context.kernels.load(context);
            if let Err(failure) = self.launch(context) {
                // Some may be under way; their memory must be the caller's again when it hears of the failure.
                self.jobs.withdraw(context);
                return Err(failure);
            }
        }
        if !self.by_engine {
            return Ok(());
        }
        if self.page_locked && self.start.direction == Direction::DeviceToHost && !context.settings.landing.is_zero() {
            // SAFETY: valid for as long as the copies are under way, and nobody else's until then, by the promise of
            // whoever added them; as page-locked as it was said to be, it is host memory.
            self.landing =
                Landing::suits(&self.pieces).then(|| unsafe { Landing::prepare(&self.pieces, landing::word()) });
        }
        let issued = self.issue_to_engine(context, |stream| self.order(context, stream));
        if issued.is_err() {
            self.jobs.withdraw(context);
        }
        self.number = issued?;
        if self.number.is_some() {
            self.landing = None;
        }
        Ok(())
    }

    /// Hands to kernels what suits them and can be, and decides whether copy engines have the rest.
    pub(super) fn launch(&mut self, context: &Context) -> Result<(), Failure> {
        let able = context.settings.kernels && context.kernels.ready();
        let plain = self.pieces.len();
        let order = self.start.ordered;
        for index in 0..self.blocks.len() {
            let blocks = self.blocks[index];
            let strides =
                able.then(|| Strides::new((blocks.dst.0, &blocks.dst.1), (blocks.src.0, &blocks.src.1), blocks.len));
            let launched = match strides.flatten() {
                Some(strides) => self.jobs.launch(context, &mut Work::Strided(strides), order)?,
                None => false,
            };
            if !launched {
                self.pieces.extend(blocks.rows());
            }
        }
        for index in 0..self.stretches.len() {
            let stretch = &self.stretches[index];
            let packed = self.context.as_ref().filter(|_| able);
            let packed = packed.and_then(|context| stretch.for_kernel(context, self.start.direction));
            let launched = match packed {
                Some(packed) => self.jobs.launch(context, &mut Work::Packed(packed), order)?,
                None => false,
            };
            if !launched && stretch.wants_kernel(self.start.direction) {
                return Err(Failure::NO_KERNEL);
            }
            if !launched {
                self.pieces.extend(stretch.pieces());
            }
        }
        self.by_engine = !self.pieces.is_empty();
        if able && self.by_engine && self.pieces.len() == plain && self.suits_a_kernel(context) {
            let mut pieces = Box::new(Pieces::new());
            if self.pieces.iter().all(|piece| pieces.push(piece.dst, piece.src, piece.width as u64)) {
                self.by_engine = !self.jobs.launch(context, &mut Work::Pieces(pieces), order)?;
            }
        }
        Ok(())
    }

    /// Whether a kernel makes the plain copies faster than copy engines, as was measured on the device, or else as it is
    /// on those where we measured it.
    ///
    /// Between two H200s, windows of 64 messages take as long either way from 512 KiB on, and windows of less than eight
    /// less time by copy engines. Within one, where the driver copies by a kernel for each, one for several is always
    /// faster: 3.3 times with messages of 8 bytes, three times with 1 MiB. A single one is not: 12 us from its launch to the
    /// word that says it is done, where the driver's kernel and the question about its end take 8.
    pub(super) fn suits_a_kernel(&self, context: &Context) -> bool {
        /// Copies between devices that are worth a launch.
        const SEVERAL: usize = 5;
        let copies = self.pieces.len();
        let plain = copies > 1 && self.pieces.iter().all(|piece| piece.rows == 1);
        match self.reachable.filter(|_| plain) {
            Some(Within::OneDevice) => true,
            Some(Within::OneNode) => {
                let bytes: usize = self.pieces.iter().map(|piece| piece.width).sum();
                let measured = || context.costs()?.kernel_is_faster(copies, bytes as u64);
                let faster = if context.settings.kernel_limit_set { None } else { measured() };
                faster.unwrap_or_else(|| copies >= SEVERAL && bytes / copies <= context.settings.kernel_limit)
            }
            None => false,
        }
    }

    /// Whether the resident copier may have all of it.
    pub(super) fn suits_the_copier(&self, context: &Context) -> bool {
        context.settings.copier
            && self.reachable == Some(Within::OneNode)
            && self.start.direction == Direction::DeviceToDevice
            && self.blocks.is_empty()
            && self.stretches.is_empty()
            && self.bytes <= copier::MOST
            && self.pieces.iter().all(|piece| piece.rows == 1)
    }

    /// Has copy engines do what jobs did not begin in time. To copy again what was copied does no harm: nobody touches
    /// either side before the operation is over.
    pub(super) fn take_from_jobs(&mut self, context: &Context) -> Result<(), Failure> {
        let rows: Vec<Piece> = self.blocks.iter().flat_map(Blocks::rows).collect();
        self.pieces.extend(rows);
        let (lost, others): (Vec<_>, Vec<_>) =
            self.stretches.iter().partition(|stretch| stretch.wants_kernel(self.start.direction));
        self.pieces.extend(others.into_iter().flat_map(Stretch::pieces));
        self.lost = !lost.is_empty();
        if self.pieces.is_empty() {
            return Ok(());
        }
        let _scope = context.enter()?;
        self.by_engine = true;
        self.event(context.driver)?;
        self.number = self.issue_to_engine(context, |stream| self.jobs.order(context.driver, stream))?;
        Ok(())
    }

    /// Has copy engines do what the resident copier did not begin. To copy the rest again does no harm.
    pub(super) fn take_from_copier(&mut self, context: &Context) -> Result<(), Failure> {
        let _scope = context.enter()?;
        self.by_engine = true;
        self.event(context.driver)?;
        self.number = self.issue_to_engine(context, |_| Ok(()))?;
        Ok(())
    }

    /// Issues all pieces, with what `order` has the stream wait for before, and answers the number of the event that
    /// follows them, if it has to. The context is current.
    pub(super) fn issue_to_engine(
        &self,
        context: &Context,
        order: impl FnOnce(CUstream) -> Result<(), Failure>,
    ) -> Result<Option<u64>, Failure> {
        let driver = context.driver;
        let stream = context.streams.of(driver, self.start.direction)?;
        order(stream)?;
        let recorded = self.issue_pieces(context, stream).and_then(|once| match self.landing {
            Some(_) if once => Ok(None),
            // Bytes that are seen may be written again where some were issued twice.
            _ => self.mark(context, stream).map(Some),
        });
        if recorded.is_err() {
            // Some may be under way; their memory must be the caller's again when it hears of the failure.
            // SAFETY: our stream, of the current context. That it fails too adds nothing.
            let _ = unsafe { driver.cuStreamSynchronize(stream) };
        }
        recorded
    }

    /// Has the event follow what was issued, and answers its number. The context is current.
    pub(super) fn mark(&self, context: &Context, stream: CUstream) -> Result<u64, Failure> {
        let event = self.event.map_or(std::ptr::null_mut(), |event| event.0);
        context.streams.recorded(self.start.direction).record(context.driver, event, stream)
    }

    /// Has a stream wait for the default stream, if the operation does. The context is current.
    fn order(&self, context: &Context, stream: CUstream) -> Result<(), Failure> {
        if self.start.ordered { context.streams.order_after_legacy(context.driver, stream) } else { Ok(()) }
    }

    /// Whether the bytes of a small copy are all there; none if the event is to tell.
    pub(super) fn look_at_landing(&mut self, context: &Context) -> Result<Option<bool>, Failure> {
        let Some(landing) = &mut self.landing else { return Ok(None) };
        // SAFETY: the pieces that it was made for, whose destinations only the device touches.
        let (over, since) = (unsafe { landing.look(&self.pieces) }, landing.since);
        if over || since.elapsed() <= context.settings.landing {
            return Ok(Some(over));
        }
        self.landing = None;
        let _scope = context.enter()?;
        let stream = context.streams.of(context.driver, self.start.direction)?;
        self.number = Some(self.mark(context, stream)?);
        Ok(None)
    }

    /// Whether each was issued once.
    pub(super) fn issue_pieces(&self, context: &Context, stream: CUstream) -> Result<bool, Failure> {
        let one_by_one = || self.pieces.iter().try_for_each(|piece| piece.issue(context, self.start.direction, stream));
        let refused = &context.batches_refused[self.start.direction as usize];
        let together = self.page_locked || self.start.direction == Direction::DeviceToDevice;
        let plain = together && self.pieces.len() > 1 && self.pieces.iter().all(|piece| piece.rows == 1);
        if !plain || refused.load(Relaxed) {
            return one_by_one().map(|()| true);
        }
        let Err(failure) = issue_batch(context.driver, &self.pieces, stream) else { return Ok(true) };
        // Some may be under way; to copy them again does no harm. If a copy is at fault, not the batch, it fails again.
        one_by_one()?;
        refused.store(true, Relaxed);
        log::debug!("copies go out one by one: {}", context.driver.reason(failure));
        Ok(false)
    }
}
