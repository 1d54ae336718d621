//! `cableway ompi` in temporary homes and prefixes, with a file that only resembles a component. `ompi/tests` tests a
//! real Open MPI with the real component.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{Finished, Test, cableway, finish};

pub(crate) const TESTS: &[Test] = &[
    ("ompi::uninstall_removes_exactly_a_users_installation", uninstall_removes_exactly_a_users_installation),
    (
        "ompi::uninstall_removes_exactly_an_installation_in_a_prefix",
        uninstall_removes_exactly_an_installation_in_a_prefix,
    ),
    ("ompi::unsuitable_components_are_refused_with_a_reason", unsuitable_components_are_refused_with_a_reason),
    ("ompi::status_prints_the_remedy", status_prints_the_remedy),
];

/// A home and a prefix with a fake Open MPI that only answers queries.
struct Machine {
    root: PathBuf,
}

impl Machine {
    fn new(name: &str, version: &str) -> Machine {
        let root = std::env::temp_dir().join(format!("cableway-ompi-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        for folder in ["home", "prefix/bin", "prefix/lib/openmpi", "prefix/etc"] {
            fs::create_dir_all(root.join(folder)).expect("a temporary folder can be made");
        }
        let machine = Machine { root };
        machine.write(
            "prefix/bin/ompi_info",
            &format!(
                "#!/bin/sh\n\
                 root={root}\n\
                 case \"$*\" in\n\
                 *--version*) echo 'Open MPI v{version}' ;;\n\
                 *'--path pkglibdir'*) echo path:pkglibdir:$root/prefix/lib/openmpi ;;\n\
                 *'--path sysconfdir'*) echo path:sysconfdir:$root/prefix/etc ;;\n\
                 *'--param pml'*)\n\
                     [ ! -e $root/complaint ] || {{ cat $root/complaint >&2; exit; }}\n\
                     for file in $root/home/.openmpi/components $root/prefix/lib/openmpi; do\n\
                         [ -e $file/mca_pml_cableway.so ] && echo mca:pml:cableway:version:component:0.1.0\n\
                     done\n\
                     for file in $root/home/.openmpi/mca-params.conf $root/prefix/etc/openmpi-mca-params.conf; do\n\
                         [ -e $file ] && value=$(sed -n 's/^pml = //p' $file | tail -n 1) && break\n\
                     done\n\
                     echo \"mca:pml:base:param:pml:value:$value\"\n\
                     echo 'mca:pml:base:param:pml:source:file' ;;\n\
                 esac\n",
                root = machine.root.display()
            ),
        );
        let script = machine.root.join("prefix/bin/ompi_info");
        let mut permissions = fs::metadata(&script).expect("just written").permissions();
        std::os::unix::fs::PermissionsExt::set_mode(&mut permissions, 0o755);
        fs::set_permissions(&script, permissions).expect("it is ours");
        machine
    }

    fn write(&self, path: &str, text: &str) -> PathBuf {
        let path = self.root.join(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("below ours");
        fs::write(&path, text).expect("below ours");
        path
    }

    /// Writes a file that names the Open MPI it was built for.
    fn component(&self, version: &str) -> PathBuf {
        let text = format!(
            "\0mca_pml_cableway_component\0mca_coll_cableway_component\0mca_osc_cableway_component\0cableway component for Open MPI {version}\0"
        );
        self.write(&format!("component-{version}.so"), &text)
    }

    /// Writes the preload library, beside the components.
    fn preload(&self) -> PathBuf {
        self.write("libcableway_mpi.so", "preloaded")
    }

    /// Returns `cableway ompi ARGUMENTS` in this home, with this prefix on the path.
    fn ompi(&self, arguments: &[&str]) -> Finished {
        self.ompi_with(arguments, &[])
    }

    /// Returns the same with variables set.
    fn ompi_with(&self, arguments: &[&str], variables: &[(&str, &str)]) -> Finished {
        let mut command: Command = cableway();
        let path = format!("{}:/usr/bin:/bin", self.root.join("prefix/bin").display());
        command.env("HOME", self.root.join("home")).env("PATH", path).arg("ompi").args(arguments);
        finish(command.env_remove("LD_PRELOAD").envs(variables.iter().copied()))
    }

    /// Returns every file below with its content, except the files of the fake machine.
    fn files(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let mut found = Vec::new();
        let mut folders = vec![self.root.join("home"), self.root.join("prefix")];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).expect("it exists").flatten() {
                match entry.file_type().expect("it exists") {
                    kind if kind.is_dir() => folders.push(entry.path()),
                    kind if kind.is_symlink() => found.push((entry.path(), b"a link".to_vec())),
                    _ => found.push((entry.path(), fs::read(entry.path()).expect("it is ours"))),
                }
            }
        }
        found.sort();
        found
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}

fn text(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn uninstall_removes_exactly_a_users_installation() {
    for (version, before) in [("5.0.7", Some("pml = ob1\n# mine, without an end")), ("4.1.4", None)] {
        let machine = Machine::new(&format!("user-{version}"), version);
        if let Some(before) = before {
            machine.write("home/.openmpi/mca-params.conf", before);
        }
        let was = machine.files();
        let component = machine.component(version);
        machine.preload();
        machine.write("libcableway_mpix.so", "streams");
        machine.write("libcableway_mp.so", "LibMP's");
        let arguments = ["install", "--component", component.to_str().expect("plain")];
        // A second installation changes nothing.
        let finished = machine.ompi(&arguments).assert_success();
        let preload = machine.root.join("home/.openmpi/cableway/libcableway_mpi.so");
        assert_eq!(text(&preload), "preloaded");
        let store = machine.root.join("home/.openmpi/cableway");
        // The library is found by the name that programs record, and by the one that they are linked with.
        for (library, built, header, call) in [
            ("cableway_mpix", "streams", "cableway_mpix.h", "MPIX_Send_enqueue"),
            ("cableway_mp", "LibMP's", "mp.h", "mp_send_on_stream"),
            ("cableway_mp", "LibMP's", "mp/kernel.h", "mp_kernel_send_descriptor"),
            ("cableway_mp", "LibMP's", "mp/device.cuh", "get_descriptors"),
            ("cableway_mp", "LibMP's", "gdsync.h", "<gdsync/core.h>"),
            ("cableway_mp", "LibMP's", "gdsync/core.h", "gds_stream_post_descriptors"),
            ("cableway_mp", "LibMP's", "gdsync/tools.h", "gds_alloc_mapped_memory"),
            ("cableway_mp", "LibMP's", "gdsync/device.cuh", "wait_geq"),
        ] {
            for name in [format!("lib{library}.so.0"), format!("lib{library}.so")] {
                assert_eq!(text(&store.join(name)), built);
            }
            assert!(text(&store.join("include").join(header)).contains(call));
            let config = text(&store.join("pkgconfig").join(format!("{library}.pc")));
            assert!(config.starts_with(&format!("prefix={}\n", store.display())), "{config}");
            assert!(config.contains(&format!(" -l{library} ")), "{config}");
            assert!(finished.stdout.contains(&format!(" -l{library} ")), "{finished:?}");
        }
        let line = format!("mpirun -x LD_PRELOAD={}", preload.display());
        assert!(finished.stdout.contains(&line), "{finished:?}");
        let once = machine.files();
        machine.ompi(&arguments).assert_success();
        assert_eq!(machine.files(), once);

        let own = machine.root.join("home/.openmpi");
        let object = own.join("cableway/libcableway_ompi.so").canonicalize().expect("the object is there");
        for name in ["mca_pml_cableway.so", "mca_coll_cableway.so", "mca_osc_cableway.so"] {
            assert_eq!(own.join("components").join(name).canonicalize().expect("a link"), object);
        }
        assert!(!own.join("components/mca_accelerator_cableway.so").exists(), "it has no such component");
        // 4.1 needs no line in a file, so no file is written.
        let settings = fs::read_to_string(own.join("mca-params.conf")).unwrap_or_default();
        assert_eq!(settings.is_empty(), before.is_none() && version.starts_with('4'), "{settings}");
        assert!(settings.starts_with(before.unwrap_or("")), "{settings}");
        // Only the user's own line has to be overridden.
        assert_eq!(settings.contains("\npml = cableway\n"), before.is_some(), "{settings}");
        let selected = if before.is_some() { "in place of pml = ob1" } else { "Open MPI prefers it" };
        assert!(finished.stdout.contains(selected), "{finished:?}");
        assert_eq!(settings.contains("opal_mca_base_component_path"), version.starts_with('5'), "{settings}");
        assert!(!settings.contains("LD_PRELOAD"), "{settings}");
        let header = text(&own.join("cableway/include/mpi-ext.h"));
        assert!(header.contains("MPIX_CUDA_AWARE_SUPPORT 1") && header.contains("MPIX_ROCM_AWARE_SUPPORT 1"));

        let finished = machine.ompi(&["uninstall"]).assert_success();
        assert!(finished.stdout.contains("removed"), "{finished:?}");
        assert_eq!(machine.files(), was);
        let finished = machine.ompi(&["uninstall"]).assert_success();
        assert!(finished.stdout.contains("nothing is installed"), "{finished:?}");
    }
}

fn uninstall_removes_exactly_an_installation_in_a_prefix() {
    let machine = Machine::new("prefix", "4.1.6");
    machine.write("prefix/etc/openmpi-mca-params.conf", "pml = ^ucx\n");
    let foreign = machine.write("elsewhere.so", "another's");
    let link = machine.root.join("prefix/lib/openmpi/mca_coll_other.so");
    std::os::unix::fs::symlink(&foreign, &link).expect("below ours");
    let was = machine.files();
    let prefix = machine.root.join("prefix");
    let prefix = prefix.to_str().expect("plain");
    let component = machine.component("4.1.4");
    let arguments = ["install", "--prefix", prefix, "--component", component.to_str().expect("plain")];
    let finished = machine.ompi(&arguments).assert_success();
    for package in ["cableway-ompi-mpix\n", "cableway-ompi-mp\n"] {
        assert!(finished.stdout.contains(&format!("cargo build --release -p {package}")), "{finished:?}");
    }
    assert!(machine.root.join("prefix/lib/openmpi/mca_pml_cableway.so").exists());
    // The existing line already permits the component.
    assert_eq!(text(&machine.root.join("prefix/etc/openmpi-mca-params.conf")), "pml = ^ucx\n");
    assert!(!machine.root.join("home/.openmpi").exists());
    machine.ompi(&["uninstall", "--prefix", prefix]).assert_success();
    assert_eq!(machine.files(), was);
}

fn unsuitable_components_are_refused_with_a_reason() {
    let machine = Machine::new("refused", "5.0.7");
    let was = machine.files();
    let other = machine.component("4.1.4");
    let nothing = machine.write("nothing.so", "nothing");
    let cases: &[(&[&str], &[&str])] = &[
        (&["install", "--component", other.to_str().expect("plain")], &["4.1.4", "5.0.7"]),
        (&["install", "--component", nothing.to_str().expect("plain")], &["nothing.so is not a component"]),
        (&["install", "--component", "/no/such.so"], &["/no/such.so"]),
        (&["install", "--prefix", "/no/such"], &["/no/such/bin/ompi_info"]),
    ];
    for (arguments, expected) in cases {
        let finished = machine.ompi(arguments);
        assert_eq!(finished.code(), 1, "{arguments:?}: {finished:?}");
        for part in *expected {
            assert!(finished.stderr.contains(part), "{arguments:?}: {finished:?}");
        }
    }
    assert_eq!(machine.files(), was);
}

fn status_prints_the_remedy() {
    let machine = Machine::new("status", "5.0.7");
    let line = |finished: &Finished, about: &str| {
        let found = finished
            .stdout
            .lines()
            .find(|line| line.get(4..).is_some_and(|rest| rest.starts_with(about)))
            .map(str::to_owned);
        found.unwrap_or_else(|| panic!("nothing about {about}: {finished:?}"))
    };
    let finished = machine.ompi(&["status"]);
    assert_eq!(finished.code(), 1);
    for (about, good) in [("Open MPI", true), ("component", false), ("loadable", false), ("selected", false)] {
        assert_eq!(line(&finished, about).starts_with("ok"), good, "{finished:?}");
    }
    assert!(finished.stdout.contains("-> cableway ompi install"), "{finished:?}");
    assert!(finished.stdout.contains("PETSc") && finished.stdout.contains("GMX_FORCE_GPU_AWARE_MPI"), "{finished:?}");

    let component = machine.component("5.0.7");
    machine.ompi(&["install", "--component", component.to_str().expect("plain")]).assert_success();
    let finished = machine.ompi(&["status"]);
    for about in ["Open MPI", "component", "loadable", "selected", "preload", "headers"] {
        assert!(line(&finished, about).starts_with("ok"), "{finished:?}");
    }
    // The preload library: missing, present, and in the environment.
    assert!(line(&finished, "preload").contains("cargo build --release -p cableway-ompi-preload"), "{finished:?}");
    machine.preload();
    machine.ompi(&["install", "--component", component.to_str().expect("plain")]).assert_success();
    let preload = machine.root.join("home/.openmpi/cableway/libcableway_mpi.so");
    let finished = machine.ompi(&["status"]);
    let said = line(&finished, "preload");
    assert!(said.contains("not set here") && said.contains(&format!("LD_PRELOAD={}", preload.display())), "{said}");
    let finished = machine.ompi_with(&["status"], &[("LD_PRELOAD", preload.to_str().expect("plain"))]);
    assert!(line(&finished, "preload").ends_with("is set here"), "{finished:?}");

    // Open MPI cannot load the component, or it was built for another Open MPI.
    let complain = |what: &str| machine.write("complaint", &format!("[host:1] something else\n[host:1] {what}\n"));
    complain(
        "mca_base_component_repository_open: unable to open mca_pml_cableway: /a/b.so: undefined symbol: c (ignored)",
    );
    let finished = machine.ompi(&["status"]);
    assert_eq!(line(&finished, "loadable"), "NO  loadable   /a/b.so: undefined symbol: c");
    complain("cableway: this is for another, and not used");
    let finished = machine.ompi(&["status"]);
    assert_eq!(line(&finished, "loadable"), "NO  loadable   this is for another, and not used");
    complain("who knows");
    let finished = machine.ompi(&["status"]);
    assert_eq!(line(&finished, "loadable"), "NO  loadable   ompi_info does not list it");
    fs::remove_file(machine.root.join("complaint")).expect("just written");

    // One of the names is removed.
    fs::remove_file(machine.root.join("home/.openmpi/components/mca_coll_cableway.so")).expect("installed above");
    let finished = machine.ompi(&["status"]);
    assert!(line(&finished, "component").starts_with("NO  component  "), "{finished:?}");
}
