//! Calls that move data.

use cableway_base::Rank;
use cableway_coll::{Call, Memory};

use super::parts::{Divided, Region, check_apart};
use super::{Member, Prepared};
use crate::Error;
use crate::error::Collective;

/// The buffers of an allgather or alltoall. Without one to send, the operation is in place.
pub(crate) struct Exchange<S, R> {
    pub(crate) name: &'static str,
    pub(crate) send: Option<S>,
    pub(crate) receive: R,
}

fn divide<'a>(
    (region, parts): Divided<'a, '_>,
    member: Member,
    operation: Collective,
) -> Result<Vec<Memory<'a>>, Error> {
    match parts {
        None => region.evenly(member, operation),
        Some(parts) => region.divide(parts, member, operation),
    }
}

fn divide_to_receive<'a>(
    divided: Divided<'a, '_>,
    member: Member,
    operation: Collective,
) -> Result<Vec<Memory<'a>>, Error> {
    let parts = divide(divided, member, operation)?;
    check_apart(&parts, operation)?;
    Ok(parts)
}

/// Checks that what this process sends to itself has the length that it expects.
fn check_own(sent: &Memory<'_>, expected: &Memory<'_>, operation: Collective) -> Result<(), Error> {
    let (sent, expected) = (sent.packed_len(), expected.packed_len());
    if sent == expected {
        return Ok(());
    }
    Err(operation.refused(format!("this rank sends {sent} bytes where it receives {expected}: lengths must be equal")))
}

pub(crate) fn broadcast(member: Member, memory: Region<'_>, root: Rank) -> Result<Prepared<'_>, Error> {
    let operation = Collective { name: "broadcast", root: Some(root), bytes: Some(memory.bytes()) };
    member.check(operation)?;
    Ok(Prepared { operation, call: Call::Broadcast { memory: memory.memory(), root } })
}

/// Only the root receives. It may be in place, without a contribution.
pub(crate) fn gather<'a>(
    member: Member,
    (name, root): (&'static str, Rank),
    send: Option<Region<'a>>,
    receive: Option<Divided<'a, '_>>,
) -> Result<Prepared<'a>, Error> {
    let bytes = send.or(receive.as_ref().map(|receive| receive.0)).map_or(0, |region| region.bytes());
    let operation = Collective { name, root: Some(root), bytes: Some(bytes) };
    member.check(operation)?;
    let send = send.map(|region| region.memory());
    let receive = match (member.rank == root, receive) {
        (false, _) if send.is_none() => {
            return Err(operation.refused("only the root may be in place: pass a buffer to send".to_owned()));
        }
        (false, _) => Vec::new(),
        (true, None) => return Err(operation.refused("the root needs a buffer to receive into".to_owned())),
        (true, Some(receive)) => {
            let parts = divide_to_receive(receive, member, operation)?;
            send.iter().try_for_each(|send| check_own(send, &parts[root as usize], operation))?;
            parts
        }
    };
    Ok(Prepared { operation, call: Call::Gather { send, receive, root } })
}

/// Gathers in place: the root's buffer has a part for each rank, those of the others are what they send.
pub(crate) fn gather_in_place<'a>(
    member: Member,
    (name, root): (&'static str, Rank),
    (buffer, parts): Divided<'a, '_>,
) -> Result<Prepared<'a>, Error> {
    let at_root = member.rank == root;
    let (send, receive) = if at_root { (None, Some((buffer, parts))) } else { (Some(buffer), None) };
    gather(member, (name, root), send, receive)
}

/// Only the root sends. It may be in place, and receive nothing.
pub(crate) fn scatter<'a>(
    member: Member,
    (name, root): (&'static str, Rank),
    send: Option<Divided<'a, '_>>,
    receive: Option<Region<'a>>,
) -> Result<Prepared<'a>, Error> {
    let bytes = receive.or(send.as_ref().map(|send| send.0)).map_or(0, |region| region.bytes());
    let operation = Collective { name, root: Some(root), bytes: Some(bytes) };
    member.check(operation)?;
    let receive = receive.map(|region| region.memory());
    let send = match (member.rank == root, send) {
        (false, _) if receive.is_none() => {
            return Err(operation.refused("only the root may be in place: pass a buffer to receive into".to_owned()));
        }
        (false, _) => Vec::new(),
        (true, None) => return Err(operation.refused("the root needs a buffer to send".to_owned())),
        (true, Some(send)) => {
            let parts = divide(send, member, operation)?;
            receive.iter().try_for_each(|receive| check_own(&parts[root as usize], receive, operation))?;
            parts
        }
    };
    Ok(Prepared { operation, call: Call::Scatter { send, receive, root } })
}

/// Scatters in place: the root's buffer has a part for each rank, those of the others are where they receive.
pub(crate) fn scatter_in_place<'a>(
    member: Member,
    (name, root): (&'static str, Rank),
    (buffer, parts): Divided<'a, '_>,
) -> Result<Prepared<'a>, Error> {
    let at_root = member.rank == root;
    let (send, receive) = if at_root { (Some((buffer, parts)), None) } else { (None, Some(buffer)) };
    scatter(member, (name, root), send, receive)
}

pub(crate) fn allgather<'a>(
    member: Member,
    call: Exchange<Region<'a>, Divided<'a, '_>>,
) -> Result<Prepared<'a>, Error> {
    let bytes = call.send.unwrap_or(call.receive.0).bytes();
    let operation = Collective { name: call.name, root: None, bytes: Some(bytes) };
    let receive = divide_to_receive(call.receive, member, operation)?;
    let send = call.send.map(|region| region.memory());
    send.iter().try_for_each(|send| check_own(send, &receive[member.rank as usize], operation))?;
    Ok(Prepared { operation, call: Call::Allgather { send, receive } })
}

pub(crate) fn alltoall<'a>(
    member: Member,
    call: Exchange<Divided<'a, '_>, Divided<'a, '_>>,
) -> Result<Prepared<'a>, Error> {
    let bytes = call.send.as_ref().unwrap_or(&call.receive).0.bytes();
    let even = call.receive.1.is_none() && call.send.as_ref().is_none_or(|send| send.1.is_none());
    let operation = Collective { name: call.name, root: None, bytes: Some(bytes) };
    let receive = divide_to_receive(call.receive, member, operation)?;
    let send = call.send.map(|send| divide(send, member, operation)).transpose()?;
    let own = member.rank as usize;
    send.iter().try_for_each(|send| check_own(&send[own], &receive[own], operation))?;
    Ok(Prepared { operation, call: Call::Alltoall { send, receive, even } })
}

#[cfg(test)]
mod tests {
    use super::super::{divided, region};
    use super::*;

    #[test]
    fn only_the_root_may_be_in_place() {
        let memory = [0_u32; 6];
        let part = || region(&memory[..3]).unwrap();
        let whole = || divided(&memory[..], None).unwrap();
        for (rank, is_right) in [(0, true), (1, false)] {
            let member = Member { rank, size: 2 };
            let gathered = gather(member, ("gather", 0), None, Some(whole()));
            assert_eq!(gathered.is_ok(), is_right, "rank {rank}");
            let scattered = scatter(member, ("scatter", 0), Some(whole()), None);
            assert_eq!(scattered.is_ok(), is_right, "rank {rank}");
            assert!(gather(member, ("gather", 0), Some(part()), Some(whole())).is_ok());
            assert!(scatter(member, ("scatter", 0), Some(whole()), Some(part())).is_ok());
        }
    }
}
