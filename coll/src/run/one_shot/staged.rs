//! Copies in host memory of an exchange's data on a device where no kernel can be launched.

use super::lists::Lists;
use crate::error::Error;
use crate::plan::one_shot::OneShot;
use crate::reduce;
use crate::run::scene::Scene;

/// The copies.
pub(super) struct Staged {
    sends: Vec<Vec<u8>>,
    /// Where other ranks' data comes, and this rank's own if it is received somewhere.
    receives: Vec<Option<Vec<u8>>>,
}

impl Staged {
    /// Copies the data that is sent.
    pub(super) fn of(scene: &Scene<'_>, shot: &OneShot) -> Result<Staged, Error> {
        let devices = &scene.shared.pools.devices;
        let sends = shot.sent.blocks().iter().map(|block| {
            let mut copy = vec![0; block.count as usize];
            // SAFETY: the plan's block has so many bytes, and stays until the operation has ended.
            unsafe { devices.copy(copy.as_mut_ptr(), scene.site.address(block.place), copy.len()) }?;
            Ok(copy)
        });
        let sends = sends.collect::<Result<_, Error>>()?;
        let receives = shot.receives.iter().map(|(place, len)| place.map(|_| vec![0; *len as usize])).collect();
        Ok(Staged { sends, receives })
    }

    /// Lists the copies.
    pub(super) fn lists(&mut self, scene: &Scene<'_>, shot: &OneShot) -> Lists {
        let receive = |copy: &mut Option<Vec<u8>>| {
            copy.as_mut().map_or((std::ptr::null_mut(), 0), |copy| (copy.as_mut_ptr(), copy.len() as u32))
        };
        let sends = self.sends.iter().map(|copy| (copy.as_ptr(), copy.len() as u32)).collect();
        Lists::at(scene, shot, sends, self.receives.iter_mut().map(receive).collect())
    }

    /// Copies the data that has come to the device, and reduces it.
    pub(super) fn bring_back(&self, scene: &Scene<'_>, shot: &OneShot) -> Result<(), Error> {
        let devices = &scene.shared.pools.devices;
        for ((place, _), copy) in shot.receives.iter().zip(&self.receives) {
            if let (Some(place), Some(copy)) = (place, copy) {
                // SAFETY: the plan's place has room for so many bytes, and no other step accesses it now.
                unsafe { devices.copy(scene.site.address(*place), copy.as_ptr(), copy.len()) }?;
            }
        }
        let lists = Lists::of(scene, shot);
        if let Some((folded, combine)) = lists.reduction(scene, shot) {
            let (output, sources) = lists.operands(scene, folded);
            // SAFETY: all sources and the output hold the elements, in memory that no other step accesses now.
            unsafe { reduce::through_host(devices, combine, output, &sources, folded.elements as usize) }?;
        }
        Ok(())
    }
}
