//! What all members do together: making communicators, and the barrier that benchmarks need.

use cableway_base::Rank;
use cableway_pml::{Buffer, SendMode};

use super::Communicator;
use crate::error::Operation;
use crate::in_flight::InFlight;
use crate::selector::raw_rank;
use crate::{Error, ErrorKind};

/// Tags of our own, which no [`Any`](crate::Any) matches. One operation is under way at a time, and messages between
/// two ranks keep their order, so that one tag for each kind is enough.
const BARRIER_TAG: i32 = -16;
const AGREEMENT_TAG: i32 = -17;

/// A colour that is none: the rank takes part in the split and gets no communicator.
const NO_COLOUR: u64 = u64::MAX;

impl Communicator {
    /// Collective. Returns when all members have called it.
    ///
    /// # Errors
    /// A member failed.
    pub fn barrier(&self) -> Result<(), Error> {
        let (rank, size) = (self.rank(), self.size());
        let mut distance = 1;
        while distance < size {
            let to = (rank + distance) % size;
            let from = (rank + size - distance) % size;
            self.exchange_nothing(to, from)?;
            distance *= 2;
        }
        Ok(())
    }

    fn exchange_nothing(&self, to: Rank, from: Rank) -> Result<(), Error> {
        let failed = |error| Operation::receive(&Buffer::EMPTY, from.into(), BARRIER_TAG.into()).failed(error);
        let request = InFlight::new(self.engine());
        // SAFETY: `request` is new, its drop waits, and there are no bytes.
        unsafe { self.engine().irecv(self.raw(), raw_rank(from), BARRIER_TAG, Buffer::EMPTY, &raw const *request) }
            .map_err(failed)?;
        if let Err(error) = self.send_raw(Buffer::EMPTY, to, BARRIER_TAG, &SendMode::Standard) {
            request.cancel();
            return Err(error.into());
        }
        request.wait();
        request.result().map(drop).map_err(failed)
    }

    /// Collective. A communicator of the same group, whose messages are kept apart from this one's.
    ///
    /// # Errors
    /// A member failed.
    pub fn dup(&self) -> Result<Communicator, Error> {
        let mut context = [0];
        if self.rank() == 0 {
            context = [self.new_context()];
            for peer in 1..self.size() {
                self.tell(peer, &context)?;
            }
        } else {
            self.hear(0, &mut context)?;
        }
        self.child(context[0], self.group().to_vec(), self.rank())
    }

    /// Collective. One communicator for each `colour`, of the ranks that named it, ordered by `key` and, where that is
    /// equal, by their rank here. None for ranks without a colour.
    ///
    /// # Errors
    /// A member failed.
    pub fn split(&self, colour: Option<u32>, key: i32) -> Result<Option<Communicator>, Error> {
        let wish = [colour.map_or(NO_COLOUR, u64::from), i64::from(key).cast_unsigned()];
        if self.rank() == 0 {
            let mut wishes = vec![wish];
            for peer in 1..self.size() {
                let mut wish = [0; 2];
                self.hear(peer, &mut wish)?;
                wishes.push(wish);
            }
            let mut mine = None;
            for members in by_colour(&wishes) {
                let context = if wishes[members[0] as usize][0] == NO_COLOUR { NO_COLOUR } else { self.new_context() };
                for (&member, rank) in members.iter().zip(0..) {
                    match member {
                        0 => mine = Some((context, rank, members.clone())),
                        _ => self.tell_group(member, context, rank, &members)?,
                    }
                }
            }
            let (context, rank, members) = mine.unwrap_or((NO_COLOUR, 0, Vec::new()));
            self.part(context, &members, rank)
        } else {
            self.tell(0, &wish)?;
            let mut head = [0; 3];
            self.hear(0, &mut head)?;
            let [context, rank, size] = head;
            // No group is larger than ours, whatever rank 0 says.
            let mut members = vec![0; size.min(u64::from(self.size())) as usize];
            self.hear(0, &mut members)?;
            let members: Vec<_> = members.into_iter().map(|member| member as Rank).collect();
            self.part(context, &members, rank as Rank)
        }
    }

    fn tell_group(&self, to: Rank, context: u64, rank: Rank, members: &[Rank]) -> Result<(), Error> {
        self.tell(to, &[context, u64::from(rank), members.len() as u64])?;
        self.tell(to, &members.iter().map(|&member| u64::from(member)).collect::<Vec<_>>())
    }

    /// `members` in this communicator's count.
    fn part(&self, context: u64, members: &[Rank], rank: Rank) -> Result<Option<Communicator>, Error> {
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
        let context =
            context.ok_or_else(|| ErrorKind::BadBuffer("the job has used up its communicators".to_owned()))?;
        Communicator::add(&self.shared.world, context, group, rank)
    }

    /// A context that nobody in the job has seen, 0 if there is none left.
    fn new_context(&self) -> u64 {
        self.shared.world.new_context().map_or(0, u64::from)
    }

    fn tell(&self, to: Rank, words: &[u64]) -> Result<(), Error> {
        let buffer = Buffer::bytes(words.as_ptr().cast(), size_of_val(words) as u64);
        Ok(self.send_raw(buffer, to, AGREEMENT_TAG, &SendMode::Standard)?)
    }

    fn hear(&self, from: Rank, words: &mut [u64]) -> Result<(), Error> {
        let buffer = Buffer::bytes(words.as_mut_ptr().cast(), size_of_val(words) as u64);
        // SAFETY: the words are borrowed exclusively, and any bytes are words.
        unsafe { self.engine().recv(self.raw(), raw_rank(from), AGREEMENT_TAG, buffer)? };
        Ok(())
    }
}

/// Ranks grouped by colour, each group ordered by key and rank.
fn by_colour(wishes: &[[u64; 2]]) -> Vec<Vec<Rank>> {
    let mut ranks: Vec<Rank> = (0..wishes.len() as u32).collect();
    let order = |rank: &Rank| {
        let [colour, key] = wishes[*rank as usize];
        (colour, key.cast_signed(), *rank)
    };
    ranks.sort_by_key(order);
    ranks.chunk_by(|a, b| wishes[*a as usize][0] == wishes[*b as usize][0]).map(<[Rank]>::to_vec).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_ordered_by_key_then_rank() {
        let key = |key: i64| key.cast_unsigned();
        let wishes = [[5, key(1)], [4, key(0)], [5, key(-1)], [NO_COLOUR, key(0)], [5, key(-1)]];
        assert_eq!(by_colour(&wishes), [vec![1], vec![2, 4, 0], vec![3]]);
    }
}
