//! Finds which files of a crate use which: `use` declarations, and paths in code and macros.
//!
//! A re-export is followed to the file that defines the item, and does not itself count as a use. Uses by method calls
//! alone are not detected, nor is code behind `cfg(test)`.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use syn::visit::Visit;
use syn::{Attribute, Item, UseTree, Visibility};

/// The files of a crate target, and their uses.
pub(crate) struct Files {
    /// Paths below the folder of the crate's root file.
    pub(crate) names: Vec<String>,
    /// From each file to the files whose items it names.
    pub(crate) uses: Vec<BTreeSet<usize>>,
}

struct Module {
    file: usize,
    parent: Option<usize>,
    children: HashMap<String, usize>,
    /// Names that `use` declarations bring into scope, and their paths.
    names: HashMap<String, Vec<String>>,
    globs: Vec<Vec<String>>,
    /// Paths that count as uses.
    paths: BTreeSet<Vec<String>>,
}

/// The result of resolving a path.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Target {
    Module(usize),
    ItemOf(usize),
}

#[derive(Default)]
struct Reader {
    modules: Vec<Module>,
    files: Vec<PathBuf>,
}

impl Files {
    /// Reads a target from its root file (`lib.rs`, `main.rs`).
    pub(crate) fn read(root: &Path) -> Files {
        let mut reader = Reader::default();
        let folder = root.parent().expect("a file lies in a folder").to_owned();
        reader.file(root, &folder, None);
        let mut uses = vec![BTreeSet::new(); reader.files.len()];
        for (index, module) in reader.modules.iter().enumerate() {
            for path in &module.paths {
                if let Some(Target::ItemOf(target)) = reader.resolve(index, path, 0) {
                    let used = reader.modules[target].file;
                    if used != module.file {
                        uses[module.file].insert(used);
                    }
                }
            }
        }
        let name = |file: &PathBuf| file.strip_prefix(&folder).unwrap_or(file).to_string_lossy().into_owned();
        Files { names: reader.files.iter().map(name).collect(), uses }
    }

    /// Returns the groups of files that use each other in a circle, by name.
    pub(crate) fn circles(&self) -> Vec<Vec<&str>> {
        let reach: Vec<BTreeSet<usize>> = (0..self.uses.len()).map(|from| self.reachable(from)).collect();
        let mut groups: BTreeMap<usize, Vec<&str>> = BTreeMap::new();
        for (file, name) in self.names.iter().enumerate() {
            let first =
                (0..self.names.len()).find(|&other| reach[file].contains(&other) && reach[other].contains(&file));
            if let Some(first) = first {
                groups.entry(first).or_default().push(name);
            }
        }
        groups.into_values().collect()
    }

    /// Returns the uses between files, by name.
    pub(crate) fn arrows(&self) -> impl Iterator<Item = (&str, &str)> {
        let targets = self.uses.iter().enumerate();
        targets.flat_map(move |(from, to)| to.iter().map(move |&to| (&*self.names[from], &*self.names[to])))
    }

    fn reachable(&self, from: usize) -> BTreeSet<usize> {
        let (mut found, mut open) = (BTreeSet::new(), vec![from]);
        while let Some(file) = open.pop() {
            open.extend(self.uses[file].iter().filter(|&&next| found.insert(next)));
        }
        found
    }
}

impl Reader {
    /// Reads a file as a module whose children lie in `folder`.
    fn file(&mut self, path: &Path, folder: &Path, parent: Option<usize>) -> usize {
        let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let parsed = syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let file = self.files.len();
        self.files.push(path.to_owned());
        self.module(file, &parsed.items, folder, parent)
    }

    fn module(&mut self, file: usize, items: &[Item], folder: &Path, parent: Option<usize>) -> usize {
        let index = self.modules.len();
        let (children, names, globs, paths) = Default::default();
        self.modules.push(Module { file, parent, children, names, globs, paths });
        for item in items {
            let Item::Mod(inner) = item else { continue };
            if is_test(&inner.attrs) {
                continue;
            }
            let name = inner.ident.to_string();
            let below = folder.join(&name);
            let child = match &inner.content {
                Some((_, items)) => self.module(file, items, &below, Some(index)),
                None => {
                    let named = path_attribute(&inner.attrs).map(|path| folder.join(path));
                    let beside = folder.join(format!("{name}.rs"));
                    let path = named.unwrap_or_else(|| if beside.exists() { beside } else { below.join("mod.rs") });
                    self.file(&path, &below, Some(index))
                }
            };
            self.modules[index].children.insert(name, child);
        }
        let mut collector = Collector(&mut self.modules[index]);
        items.iter().for_each(|item| collector.visit_item(item));
        index
    }

    fn resolve(&self, from: usize, path: &[String], depth: usize) -> Option<Target> {
        // A name that resolves to itself ends here.
        if depth > 16 {
            return None;
        }
        let mut at = Target::Module(from);
        for (position, segment) in path.iter().enumerate() {
            let Target::Module(module) = at else { return Some(at) };
            at = match segment.as_str() {
                "crate" if position == 0 => Target::Module(0),
                "self" => at,
                "super" => Target::Module(self.modules[module].parent?),
                name => self.member(module, name, position == 0, depth)?,
            };
        }
        Some(at)
    }

    /// Returns the meaning of a name in a module, or `None` if it is not of this crate.
    fn member(&self, module: usize, name: &str, first: bool, depth: usize) -> Option<Target> {
        let known = &self.modules[module];
        if let Some(&child) = known.children.get(name) {
            return Some(Target::Module(child));
        }
        if let Some(path) = known.names.get(name) {
            return if path.len() == 1 && path[0] == name { None } else { self.resolve(module, path, depth + 1) };
        }
        // The first name of a path may be another crate's.
        let local = |target: &Target| !matches!(target, Target::ItemOf(found) if *found == module);
        let glob = || known.globs.iter().filter_map(|path| self.resolve(module, path, depth + 1));
        let by_glob = || {
            glob().find_map(|target| match target {
                Target::Module(other) if other != module => {
                    let has = &self.modules[other];
                    let listed = has.children.contains_key(name) || has.names.contains_key(name);
                    listed.then(|| self.member(other, name, false, depth + 1)).flatten()
                }
                _ => None,
            })
        };
        by_glob().filter(local).or((!first).then_some(Target::ItemOf(module)))
    }
}

/// Collects the names and paths of one module, without its child modules.
struct Collector<'m>(&'m mut Module);

impl Collector<'_> {
    fn declare(&mut self, tree: &UseTree, prefix: &mut Vec<String>, reexport: bool) {
        match tree {
            UseTree::Path(path) => {
                prefix.push(path.ident.to_string());
                self.declare(&path.tree, prefix, reexport);
                prefix.pop();
            }
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.declare(tree, prefix, reexport)),
            UseTree::Glob(_) => self.0.globs.push(prefix.clone()),
            UseTree::Name(name) if name.ident == "self" => {
                let known = prefix.last().cloned().unwrap_or_default();
                self.name(known, prefix.clone(), reexport);
            }
            UseTree::Name(name) => {
                let name = name.ident.to_string();
                let path = prefix.iter().cloned().chain([name.clone()]).collect();
                self.name(name, path, reexport);
            }
            UseTree::Rename(rename) => {
                let path = prefix.iter().cloned().chain([rename.ident.to_string()]).collect();
                self.name(rename.rename.to_string(), path, reexport);
            }
        }
    }

    fn name(&mut self, name: String, path: Vec<String>, reexport: bool) {
        if !reexport {
            self.0.paths.insert(path.clone());
        }
        self.0.names.insert(name, path);
    }
}

impl<'ast> Visit<'ast> for Collector<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        let attributes = match item {
            Item::Mod(_) => return,
            Item::Use(declaration) => {
                if !is_test(&declaration.attrs) {
                    let reexport = !matches!(declaration.vis, Visibility::Inherited);
                    self.declare(&declaration.tree, &mut Vec::new(), reexport);
                }
                return;
            }
            Item::Fn(inner) => &inner.attrs,
            Item::Impl(inner) => &inner.attrs,
            Item::Const(inner) => &inner.attrs,
            Item::Static(inner) => &inner.attrs,
            Item::Struct(inner) => &inner.attrs,
            Item::Enum(inner) => &inner.attrs,
            _ => return syn::visit::visit_item(self, item),
        };
        if !is_test(attributes) {
            syn::visit::visit_item(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        if !is_test(&function.attrs) {
            syn::visit::visit_impl_item_fn(self, function);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        self.0.paths.insert(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        syn::visit::visit_path(self, path);
    }

    fn visit_visibility(&mut self, _: &'ast Visibility) {}

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        let text = call.tokens.to_string().replace("::", " :: ");
        let words: Vec<&str> = text.split_whitespace().collect();
        let mut path: Vec<String> = Vec::new();
        for (index, word) in words.iter().enumerate() {
            let joined = index > 0 && words[index - 1] == "::";
            if *word == "::" {
                continue;
            }
            if !joined && path.len() > 1 {
                self.0.paths.insert(std::mem::take(&mut path));
            }
            if !joined {
                path.clear();
            }
            path.push((*word).to_owned());
        }
        if path.len() > 1 {
            self.0.paths.insert(path);
        }
        syn::visit::visit_macro(self, call);
    }
}

fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let text = match &attribute.meta {
            syn::Meta::List(list) if list.path.is_ident("cfg") => list.tokens.to_string(),
            _ => return false,
        };
        text.split(|at: char| !at.is_alphanumeric()).any(|word| word == "test") && !text.contains("not")
    })
}

fn path_attribute(attributes: &[Attribute]) -> Option<String> {
    attributes.iter().find_map(|attribute| match &attribute.meta {
        syn::Meta::NameValue(pair) if pair.path.is_ident("path") => match &pair.value {
            syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. }) => Some(text.value()),
            _ => None,
        },
        _ => None,
    })
}
