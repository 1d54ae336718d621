//! How applications detect that MPI accepts device memory, and how to override the detection.
//!
//! A distribution's Open MPI answers no to all probes (`MPIX_CUDA_AWARE_SUPPORT`, `MPIX_Query_cuda_support`,
//! `ompi_info`), whichever component it loads. Each row is from the application's own source or manual.

use std::fmt::Write as _;

struct Application {
    name: &'static str,
    decides: &'static str,
    switch: &'static str,
}

const APPLICATIONS: &[Application] = &[
    Application {
        name: "PETSc",
        decides: "sends a device buffer at its start; old releases read the macro",
        switch: "-use_gpu_aware_mpi 1 (the default); 0 stages",
    },
    Application {
        name: "GROMACS",
        decides: "calls MPIX_Query_cuda_support when built and when run",
        switch: "GMX_ENABLE_DIRECT_GPU_COMM=1 GMX_FORCE_GPU_AWARE_MPI=1",
    },
    Application {
        name: "LAMMPS",
        decides: "KOKKOS package: on unless its probe says no",
        switch: "-pk kokkos gpu/aware on",
    },
    Application {
        name: "AMReX",
        decides: "a run-time parameter; the default depends on the release",
        switch: "amrex.use_gpu_aware_mpi=1",
    },
    Application { name: "QUDA", decides: "off by default", switch: "QUDA_ENABLE_GDR=1" },
    Application {
        name: "CP2K",
        decides: "COSMA decides when built",
        switch: "COSMA built with -DCOSMA_WITH_GPU_AWARE_MPI=ON",
    },
    Application {
        name: "Trilinos",
        decides: "Tpetra: probed when configured",
        switch: "TPETRA_ASSUME_GPU_AWARE_MPI=1",
    },
    Application {
        name: "hypre",
        decides: "when configured; since 2.31 also at run time",
        switch: "--enable-gpu-aware-mpi, HYPRE_SetGpuAwareMPI(1)",
    },
    Application { name: "MFEM", decides: "off by default", switch: "Device::SetGPUAwareMPI(true)" },
    Application {
        name: "Ginkgo, OGL",
        decides: "when configured; OpenFOAM's OGL is built on it",
        switch: "-DGINKGO_FORCE_GPU_AWARE_MPI=ON; OGL: forceHostBuffer false",
    },
];

/// Formats the table, one row for each application.
pub(super) fn table() -> String {
    let mut text =
        "Applications that probe for CUDA support may not detect Cableway and silently stage. Override the probe with:\n".to_owned();
    for Application { name, decides, switch } in APPLICATIONS {
        let _ = writeln!(text, "    {name:<12} {switch}");
        let _ = writeln!(text, "    {:<12}   ({decides})", "");
    }
    text
}
