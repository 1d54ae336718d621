//! How applications decide whether MPI takes device memory, and what has them believe it.
//!
//! A distribution's Open MPI says no where it is asked (`MPIX_CUDA_AWARE_SUPPORT`, `MPIX_Query_cuda_support`,
//! `ompi_info`), whatever component it loads. Each row is from the application's own source or manual.

use std::fmt::Write as _;

struct Application {
    name: &'static str,
    decides: &'static str,
    switch: &'static str,
}

const APPLICATIONS: &[Application] = &[
    Application {
        name: "PETSc",
        decides: "tries a device buffer as it starts; old releases trust the macro",
        switch: "-use_gpu_aware_mpi 1 (the default); 0 stages",
    },
    Application {
        name: "GROMACS",
        decides: "asks MPIX_Query_cuda_support, built and run",
        switch: "GMX_ENABLE_DIRECT_GPU_COMM=1 GMX_FORCE_GPU_AWARE_MPI=1",
    },
    Application {
        name: "LAMMPS",
        decides: "KOKKOS package: on unless it finds otherwise",
        switch: "-pk kokkos gpu/aware on",
    },
    Application {
        name: "AMReX",
        decides: "a run-time parameter; what it defaults to depends on the release",
        switch: "amrex.use_gpu_aware_mpi=1",
    },
    Application { name: "QUDA", decides: "off unless told", switch: "QUDA_ENABLE_GDR=1" },
    Application {
        name: "CP2K",
        decides: "through COSMA, which decides when built",
        switch: "COSMA built with -DCOSMA_WITH_GPU_AWARE_MPI=ON",
    },
    Application {
        name: "Trilinos",
        decides: "Tpetra: as found when configured, or as told",
        switch: "TPETRA_ASSUME_GPU_AWARE_MPI=1",
    },
    Application {
        name: "hypre",
        decides: "when configured; since 2.31 also while it runs",
        switch: "--enable-gpu-aware-mpi, HYPRE_SetGpuAwareMPI(1)",
    },
    Application { name: "MFEM", decides: "off unless the program says", switch: "Device::SetGPUAwareMPI(true)" },
    Application {
        name: "Ginkgo, OGL",
        decides: "when configured; OpenFOAM's OGL is built on it",
        switch: "-DGINKGO_FORCE_GPU_AWARE_MPI=ON; OGL: forceHostBuffer false",
    },
];

/// One row an application.
pub(super) fn table() -> String {
    let mut text =
        "Applications decide for themselves whether MPI takes device memory. What has them believe it:\n".to_owned();
    for Application { name, decides, switch } in APPLICATIONS {
        let _ = writeln!(text, "    {name:<12} {switch}");
        let _ = writeln!(text, "    {:<12}   ({decides})", "");
    }
    text
}
