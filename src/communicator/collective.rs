//! Collective operations: creating communicators, and the barrier.

use cableway_base::Rank;
use cableway_pml::{Buffer, SendMode};

use super::Communicator;
use crate::error::Operation;
use crate::in_flight::InFlight;
use crate::selector::raw_rank;
use crate::{Error, ErrorKind};

/// Reserved tags, which [`Any`](crate::Any) does not match. A communicator runs one blocking barrier or agreement at a
/// time, and messages between two ranks keep their order. Therefore one tag for each kind of operation is enough.
const BARRIER_TAG: i32 = -16;
const AGREEMENT_TAG: i32 = -17;

/// The words of a message between members that agree. So many bytes leave before the receiver asks for them.
const MESSAGE_WORDS: usize = 64;

/// The colour of ranks that take part in a split and get no communicator.
const NO_COLOUR: u64 = u64::MAX;

impl Communicator {
    /// Waits until all members have called it. Collective.
    ///
    /// # Errors
    /// A member failed.
    pub fn barrier(&self) -> Result<(), Error> {
        let (rank, size) = (self.rank(), self.size());
        let mut distance = 1;
        while distance < size {
            let to = (rank + distance) % size;
            let from = (rank + size - distance) % size;
            self.exchange_empty(to, from)?;
            distance *= 2;
        }
        Ok(())
    }

    fn exchange_empty(&self, to: Rank, from: Rank) -> Result<(), Error> {
        let failed = |error| Operation::receive(&Buffer::EMPTY, from.into(), BARRIER_TAG.into()).failed(error);
        let request = InFlight::new(self.engine());
        // SAFETY: `request` is new, its drop waits, and there are no bytes.
        unsafe { self.engine().irecv(self.raw(), raw_rank(from), BARRIER_TAG, Buffer::EMPTY, &raw const *request) }
            .map_err(failed)?;
        if let Err(error) = self.send_raw(Buffer::EMPTY, to, BARRIER_TAG, &SendMode::Standard) {
            request.cancel();
            return Err(error.into());
        }
        self.wait_among_members(&request).map_err(failed)
    }

    /// Waits for a receive of a collective operation. A sender that has given up since a member died will not send, so
    /// the death of any member ends the wait.
    fn wait_among_members(&self, request: &InFlight<'_>) -> Result<(), cableway_pml::Error> {
        let mut death = Ok(());
        self.engine().wait_until(|| {
            if !request.is_active() {
                return true;
            }
            death = self.engine().check_members(self.raw());
            death.is_err()
        });
        if death.is_err() {
            request.cancel();
        }
        request.wait();
        death?;
        request.result().map(drop)
    }

    /// Creates a communicator with the same group and a separate context: neither matches the other's messages.
    /// Collective.
    ///
    /// # Errors
    /// A member failed.
    pub fn dup(&self) -> Result<Communicator, Error> {
        let mut context = [0];
        if self.rank() == 0 {
            context = [self.new_context()];
            for peer in 1..self.size() {
                self.send_words(peer, &context)?;
            }
        } else {
            self.recv_words(0, &mut context)?;
        }
        self.child(context[0], self.group().to_vec(), self.rank())
    }

    /// Creates one communicator for each `colour`, of the ranks that passed it. Collective.
    ///
    /// Ranks are ordered by `key`, and those with equal keys by their rank here. A rank without a colour gets `None`.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), cableway::Error> {
    /// let world = cableway::World::init()?;
    /// let parity = world.communicator().split(Some(world.rank() % 2), 0)?.expect("every rank has a colour");
    /// assert_eq!(parity.rank(), world.rank() / 2);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// A member failed.
    pub fn split(&self, colour: Option<u32>, key: i32) -> Result<Option<Communicator>, Error> {
        let choice = [colour.map_or(NO_COLOUR, u64::from), i64::from(key).cast_unsigned()];
        if self.rank() == 0 {
            let mut choices = vec![choice];
            for peer in 1..self.size() {
                let mut choice = [0; 2];
                self.recv_words(peer, &mut choice)?;
                choices.push(choice);
            }
            let mut mine = None;
            for members in by_colour(&choices) {
                let context = if choices[members[0] as usize][0] == NO_COLOUR { NO_COLOUR } else { self.new_context() };
                for (&member, rank) in members.iter().zip(0..) {
                    match member {
                        0 => mine = Some((context, rank, members.clone())),
                        _ => self.send_group(member, context, rank, &members)?,
                    }
                }
            }
            let (context, rank, members) = mine.unwrap_or((NO_COLOUR, 0, Vec::new()));
            self.child_of(context, &members, rank)
        } else {
            self.send_words(0, &choice)?;
            let mut head = [0; 3];
            self.recv_words(0, &mut head)?;
            let [context, rank, size] = head;
            // Do not trust rank 0 with the length: no group is larger than this one.
            let mut members = vec![0; size.min(u64::from(self.size())) as usize];
            self.recv_words(0, &mut members)?;
            let members: Vec<_> = members.into_iter().map(|member| member as Rank).collect();
            self.child_of(context, &members, rank as Rank)
        }
    }

    fn send_group(&self, to: Rank, context: u64, rank: Rank, members: &[Rank]) -> Result<(), Error> {
        self.send_words(to, &[context, u64::from(rank), members.len() as u64])?;
        self.send_words(to, &members.iter().map(|&member| u64::from(member)).collect::<Vec<_>>())
    }

    /// Creates the communicator of `members`, which are ranks of this one.
    fn child_of(&self, context: u64, members: &[Rank], rank: Rank) -> Result<Option<Communicator>, Error> {
        if context == NO_COLOUR {
            return Ok(None);
        }
        let in_job = |&member: &Rank| self.group().get(member as usize).copied();
        let group = members.iter().map(in_job).collect::<Option<Vec<_>>>();
        let group = group.ok_or(cableway_pml::Error::NoSuchRank { rank: -1, size: self.group().len() })?;
        self.child(context, group, rank).map(Some)
    }

    fn child(&self, context: u64, group: Vec<Rank>, rank: Rank) -> Result<Communicator, Error> {
        let context = u32::try_from(context).ok().filter(|&context| context != 0);
        let context = context.ok_or_else(|| {
            ErrorKind::BadBuffer("no context is left for another communicator of this job".to_owned())
        })?;
        Communicator::add(&self.shared.world, context, group, rank)
    }

    /// Returns a context that no process of the job has used, or 0 if none is left.
    fn new_context(&self) -> u64 {
        self.shared.world.new_context().map_or(0, u64::from)
    }

    /// Sends words in messages that leave at once: a receiver that has given up takes none.
    fn send_words(&self, to: Rank, words: &[u64]) -> Result<(), Error> {
        for words in words.chunks(MESSAGE_WORDS) {
            let buffer = Buffer::bytes(words.as_ptr().cast(), size_of_val(words) as u64);
            self.send_raw(buffer, to, AGREEMENT_TAG, &SendMode::Standard)?;
        }
        Ok(())
    }

    fn recv_words(&self, from: Rank, words: &mut [u64]) -> Result<(), Error> {
        for words in words.chunks_mut(MESSAGE_WORDS) {
            let buffer = Buffer::bytes(words.as_mut_ptr().cast(), size_of_val(words) as u64);
            let request = InFlight::new(self.engine());
            // SAFETY: `request` is new, its drop waits, the words are borrowed exclusively for longer, and any bytes are
            // valid words.
            unsafe { self.engine().irecv(self.raw(), raw_rank(from), AGREEMENT_TAG, buffer, &raw const *request)? };
            self.wait_among_members(&request)?;
        }
        Ok(())
    }
}

/// Groups ranks by colour; each group is ordered by key, then rank.
fn by_colour(choices: &[[u64; 2]]) -> Vec<Vec<Rank>> {
    let mut ranks: Vec<Rank> = (0..choices.len() as u32).collect();
    let order = |rank: &Rank| {
        let [colour, key] = choices[*rank as usize];
        (colour, key.cast_signed(), *rank)
    };
    ranks.sort_by_key(order);
    ranks.chunk_by(|a, b| choices[*a as usize][0] == choices[*b as usize][0]).map(<[Rank]>::to_vec).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_ordered_by_key_then_rank() {
        let key = |key: i64| key.cast_unsigned();
        let choices = [[5, key(1)], [4, key(0)], [5, key(-1)], [NO_COLOUR, key(0)], [5, key(-1)]];
        assert_eq!(by_colour(&choices), [vec![1], vec![2, 4, 0], vec![3]]);
    }
}
