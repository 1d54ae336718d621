//! The support of a machine for GPUDirect RDMA.

use std::path::Path;

use cableway_base::Parameters;
use cableway_btl::Error;

use crate::settings::Settings;
use crate::verbs::Library;

/// Kernel modules through which verbs register device addresses.
const MODULES: [&str; 2] = ["nvidia_peermem", "nv_peer_mem"];
/// The folder in which MLNX_OFED's kernel lists peer memory clients.
const PEERS: &str = "kernel/mm/memory_peers";

/// A machine's support for GPUDirect RDMA, apart from its devices, for `cableway info`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DirectFacts {
    /// Whether libibverbs registers dma-bufs. The error is the reason why not.
    pub dma_buf: Result<(), String>,
    /// The kernel module by which verbs register device memory. The error says where it was searched.
    pub peer_memory: Result<String, String>,
    /// The largest message in bytes for which it is used.
    pub limit: usize,
}

impl DirectFacts {
    /// Checks this machine. Loads libibverbs if it is installed.
    ///
    /// # Errors
    /// Parameters contradict each other.
    pub fn new(parameters: &Parameters) -> Result<Self, Error> {
        let settings = Settings::new(parameters)?.direct;
        let dma_buf = match Library::load() {
            Ok(library) if library.ibv_reg_dmabuf_mr.is_some() => Ok(()),
            Ok(_) => Err("libibverbs is older than its version 34".to_owned()),
            Err(reason) => Err(reason.to_owned()),
        };
        Ok(DirectFacts { dma_buf, peer_memory: peer_memory(&settings.sysfs), limit: settings.limit })
    }
}

/// Returns the loaded kernel module by which verbs register device memory.
pub(super) fn peer_memory(sysfs: &Path) -> Result<String, String> {
    let module = MODULES.into_iter().find(|module| sysfs.join("module").join(module).exists());
    let peers = || std::fs::read_dir(sysfs.join(PEERS)).into_iter().flatten().flatten();
    let peer = || peers().map(|entry| entry.file_name().to_string_lossy().into_owned()).min();
    module.map(str::to_owned).or_else(peer).ok_or_else(|| {
        let sysfs = sysfs.display();
        format!("neither of the modules {} is in {sysfs}/module, nor anything in {sysfs}/{PEERS}", MODULES.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_are_found_where_kernels_show_them() {
        let folder = std::env::temp_dir().join(format!("cableway-peer-memory-{}", std::process::id()));
        let found = |path: &str| {
            let sysfs = folder.join(path.replace('/', "-"));
            std::fs::create_dir_all(sysfs.join(path)).unwrap();
            peer_memory(&sysfs)
        };
        assert_eq!(found("module/nvidia_peermem"), Ok("nvidia_peermem".to_owned()));
        assert_eq!(found("module/nv_peer_mem"), Ok("nv_peer_mem".to_owned()));
        assert_eq!(found("kernel/mm/memory_peers/nv_mem"), Ok("nv_mem".to_owned()));
        let reason = found("module/nvidia").unwrap_err();
        assert!(reason.contains("nvidia_peermem") && reason.contains("memory_peers"), "{reason}");
        assert!(found("kernel/mm/memory_peers").is_err());
        std::fs::remove_dir_all(folder).unwrap();
    }
}
