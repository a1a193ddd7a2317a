//! Imports form no circles: if a file uses what another file defines, that one does not use the first, directly or through others.
//!
//! Place: tests of `cargo xtask check`. They read the sources of the repository and start nothing.
//!
//! A name counts for the file that defines it, however many `use` are in between. A module that only declares its children and re-exports
//! them does not use them. Folders obey the same rule: the files and subfolders of a folder, the latter as wholes, form no circle. Code
//! for tests is left out.
//!
//! Invariant: the list of known circles only shrinks; the test fails if one is gone, or smaller, until the list says so.
//!
//! Deliberately absent: methods, because a call `x.f()` does not say where `f` is defined (only the type's definition counts); circles
//! between crates, because cargo refuses them.

use flashweir_judges::host::root;
use proc_macro2::{TokenStream, TokenTree};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use syn::visit::{self, Visit};
use syn::{Item, UseTree, Visibility};

/// Known circles, each with its files or entries in the order of their paths, and the reason.
const KNOWN: &[(&[&str], &str)] = &[];

/// Edges from each file, or entry of a folder, to those that it uses.
type Graph = BTreeMap<String, BTreeSet<String>>;

/// A `use` in a module: the path, and whether it is re-exported.
struct Import {
    path: Vec<String>,
    is_public: bool,
}

/// A module of a crate: a file or a part of one.
#[derive(Default)]
struct Module {
    file: String,
    /// Names that it defines, except modules.
    items: BTreeSet<String>,
    children: BTreeSet<String>,
    imports: BTreeMap<String, Vec<Import>>,
    globs: Vec<Import>,
    /// Paths in its code, as written.
    paths: BTreeSet<Vec<String>>,
}

/// Modules of a crate by their paths; the root's path is empty.
type Modules = BTreeMap<Vec<String>, Module>;

fn is_for_tests(attrs: &[syn::Attribute]) -> bool {
    attrs.iter().any(|attr| match &attr.meta {
        syn::Meta::Path(path) => path.is_ident("test"),
        syn::Meta::List(list) if list.path.is_ident("cfg") => {
            let condition = list.tokens.to_string();
            condition == "test" || condition.replace(' ', "").starts_with("all(test,")
        }
        _ => false,
    })
}

fn attributes(item: &Item) -> &[syn::Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// Name that an item defines, if it is neither a module nor a `use`.
fn defines(item: &Item) -> Option<&syn::Ident> {
    match item {
        Item::Const(item) => Some(&item.ident),
        Item::Enum(item) => Some(&item.ident),
        Item::Fn(item) => Some(&item.sig.ident),
        Item::Macro(item) => item.ident.as_ref(),
        Item::Static(item) => Some(&item.ident),
        Item::Struct(item) => Some(&item.ident),
        Item::Trait(item) => Some(&item.ident),
        Item::Type(item) => Some(&item.ident),
        _ => None,
    }
}

impl Module {
    /// Adds the leaves of a `use`; `before` is the path to the left.
    fn import(&mut self, before: &[String], tree: &UseTree, is_public: bool) {
        let with = |name: &syn::Ident| [before, &[name.to_string()]].concat();
        match tree {
            UseTree::Path(tree) => self.import(&with(&tree.ident), &tree.tree, is_public),
            UseTree::Group(group) => {
                group.items.iter().for_each(|tree| self.import(before, tree, is_public));
            }
            UseTree::Glob(_) => self.globs.push(Import { path: before.to_vec(), is_public }),
            UseTree::Name(leaf) => {
                let path = if leaf.ident == "self" { before.to_vec() } else { with(&leaf.ident) };
                let name = path.last().cloned().unwrap_or_default();
                self.imports.entry(name).or_default().push(Import { path, is_public });
            }
            UseTree::Rename(leaf) => {
                let path = if leaf.ident == "self" { before.to_vec() } else { with(&leaf.ident) };
                let name = leaf.rename.to_string();
                self.imports.entry(name).or_default().push(Import { path, is_public });
            }
        }
    }

    /// Adds the paths among the tokens of a macro, except fields and methods.
    fn tokens(&mut self, tokens: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        let (mut colons, mut after_dot) = (0, false);
        for token in tokens {
            match token {
                TokenTree::Ident(ident) => {
                    if colons != 2 {
                        self.path(std::mem::take(&mut path));
                    }
                    if !after_dot {
                        path.push(ident.to_string());
                    }
                    (colons, after_dot) = (0, false);
                }
                TokenTree::Punct(punct) if punct.as_char() == ':' => colons += 1,
                other => {
                    self.path(std::mem::take(&mut path));
                    colons = 0;
                    after_dot = matches!(&other, TokenTree::Punct(punct) if punct.as_char() == '.');
                    if let TokenTree::Group(group) = other {
                        self.tokens(group.stream());
                    }
                }
            }
        }
        self.path(path);
    }

    fn path(&mut self, path: Vec<String>) {
        if !path.is_empty() {
            self.paths.insert(path);
        }
    }
}

/// Visitor that adds the paths inside the items of a module.
struct Inside<'a>(&'a mut Module);

impl<'ast> Visit<'ast> for Inside<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        if !is_for_tests(attributes(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        if !is_for_tests(&function.attrs) {
            visit::visit_impl_item_fn(self, function);
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        // A `use` in a function counts for the whole module here, which is wrong only for equal names.
        self.0.import(&[], &item.tree, false);
    }

    fn visit_attribute(&mut self, _: &'ast syn::Attribute) {}

    fn visit_visibility(&mut self, _: &'ast Visibility) {}

    fn visit_path(&mut self, path: &'ast syn::Path) {
        self.0.path(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        self.visit_path(&call.path);
        self.0.tokens(call.tokens.clone());
    }
}

/// Modules of a crate, read from its root file on. `read` returns the text of a file by its path.
fn modules(root: &str, read: &dyn Fn(&str) -> Option<String>) -> Modules {
    let mut modules = Modules::new();
    let text = read(root).unwrap_or_else(|| panic!("there is no {root}"));
    let (dir, _) = root.rsplit_once('/').expect("a root stands in a folder");
    file(&mut modules, Vec::new(), root, dir, &text, read);
    modules
}

fn file(
    modules: &mut Modules,
    at: Vec<String>,
    path: &str,
    dir: &str,
    text: &str,
    read: &dyn Fn(&str) -> Option<String>,
) {
    let file = syn::parse_file(text).unwrap_or_else(|error| panic!("{path}: {error}"));
    items(modules, at, path, dir, &file.items, read);
}

fn items(
    modules: &mut Modules,
    at: Vec<String>,
    path: &str,
    dir: &str,
    items_here: &[Item],
    read: &dyn Fn(&str) -> Option<String>,
) {
    let mut module = Module { file: path.to_owned(), ..Module::default() };
    for item in items_here.iter().filter(|item| !is_for_tests(attributes(item))) {
        match item {
            Item::Use(item) => {
                let is_public = !matches!(item.vis, Visibility::Inherited);
                module.import(&[], &item.tree, is_public);
            }
            Item::Mod(child) => {
                let name = child.ident.to_string();
                let below = [at.as_slice(), std::slice::from_ref(&name)].concat();
                let child_dir = format!("{dir}/{name}");
                if let Some((_, inline)) = &child.content {
                    items(modules, below, path, &child_dir, inline, read);
                } else {
                    let places = [format!("{child_dir}.rs"), format!("{child_dir}/mod.rs")];
                    let found = places.iter().find_map(|place| Some((place, read(place)?)));
                    let (place, text) = found.unwrap_or_else(|| panic!("{path}: no file for mod {name}"));
                    file(modules, below, place, &child_dir, &text, read);
                }
                module.children.insert(name);
            }
            item => {
                module.items.extend(defines(item).map(ToString::to_string));
                Inside(&mut module).visit_item(item);
            }
        }
    }
    modules.insert(at, module);
}

/// Target of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Target {
    Module(Vec<String>),
    /// File that defines an item.
    File(String),
}

/// Resolves names. `trail` has the names that are being looked up, so that globs of each other end.
struct Lookup<'a> {
    modules: &'a Modules,
    trail: Vec<(Vec<String>, String)>,
}

impl Lookup<'_> {
    /// Target of `path` when it is written in the module `at`; `None` outside of the crate.
    fn path(&mut self, at: &[String], path: &[String]) -> Option<Target> {
        let mut here = at.to_vec();
        let mut rest = path;
        let mut is_anchored = false;
        while let Some((first, more)) = rest.split_first() {
            match first.as_str() {
                "crate" => here.clear(),
                "super" => drop(here.pop()?),
                "self" if path.len() > 1 => {}
                _ => break,
            }
            (rest, is_anchored) = (more, true);
        }
        let mut target = Target::Module(here);
        for (nth, name) in rest.iter().enumerate() {
            let Target::Module(module) = &target else { break };
            let is_last = nth + 1 == rest.len();
            match self.name(module, name, is_last) {
                Some(found) => target = found,
                // A macro of that module defines it.
                None if nth > 0 || is_anchored => {
                    return Some(Target::File(self.modules[module].file.clone()));
                }
                None => return None,
            }
        }
        Some(target)
    }

    /// Target of `name` in the module `at`.
    fn name(&mut self, at: &[String], name: &str, is_last: bool) -> Option<Target> {
        let module = &self.modules[at];
        let has_child = module.children.contains(name);
        if module.items.contains(name) && (is_last || !has_child) {
            return Some(Target::File(module.file.clone()));
        }
        if has_child && !(is_last && module.imports.contains_key(name)) {
            return Some(Target::Module([at, &[name.to_owned()]].concat()));
        }
        let key = (at.to_vec(), name.to_owned());
        if self.trail.contains(&key) {
            return None;
        }
        self.trail.push(key);
        let imports = module.imports.get(name).into_iter().flatten();
        let mut found = imports.filter_map(|import| self.path(at, &import.path)).collect::<Vec<_>>();
        found.sort_by_key(|target| matches!(target, Target::Module(_)) == is_last);
        let mut found = found.into_iter().next();
        for glob in &module.globs {
            if found.is_none()
                && let Some(Target::Module(module)) = self.path(at, &glob.path)
            {
                found = self.name(&module, name, is_last);
            }
        }
        self.trail.pop();
        if found.is_none() && has_child {
            return Some(Target::Module([at, &[name.to_owned()]].concat()));
        }
        found
    }
}

/// Graph of the uses among the files of a crate.
fn graph(modules: &Modules) -> Graph {
    let mut graph: Graph = modules.values().map(|module| (module.file.clone(), BTreeSet::new())).collect();
    for (at, module) in modules {
        let mut lookup = Lookup { modules, trail: Vec::new() };
        let mut edges = BTreeSet::new();
        for path in &module.paths {
            // A path that is only the name of a module is a variable here.
            match lookup.path(at, path) {
                Some(Target::File(file)) => drop(edges.insert(file)),
                Some(Target::Module(_)) | None => {}
            }
        }
        let globs = module.globs.iter().map(|import| (import, true));
        let imports = module.imports.values().flatten().map(|import| (import, false));
        for (import, is_glob) in globs.chain(imports) {
            let direct = lookup.path(at, &import.path);
            let own = |file: &str| modules.iter().any(|(path, m)| m.file == file && path.starts_with(at));
            match direct {
                Some(Target::File(file)) if !(import.is_public && own(&file)) => drop(edges.insert(file)),
                Some(Target::Module(path)) if is_glob && !(import.is_public && path.starts_with(at)) => {
                    edges.insert(modules[&path].file.clone());
                }
                _ => {}
            }
        }
        edges.remove(&module.file);
        graph.get_mut(&module.file).expect("all files are there").extend(edges);
    }
    graph
}

/// Strongly connected components of more than one node, each sorted (Tarjan).
fn circles(graph: &Graph) -> Vec<Vec<String>> {
    #[derive(Default)]
    struct Search<'a> {
        order: BTreeMap<&'a str, usize>,
        low: BTreeMap<&'a str, usize>,
        stack: Vec<&'a str>,
        found: Vec<Vec<String>>,
    }
    fn visit<'a>(search: &mut Search<'a>, graph: &'a Graph, node: &'a str) {
        let number = search.order.len();
        search.order.insert(node, number);
        search.low.insert(node, number);
        search.stack.push(node);
        for next in &graph[node] {
            let reached = if !search.order.contains_key(next.as_str()) {
                visit(search, graph, next);
                search.low[next.as_str()]
            } else if search.stack.contains(&next.as_str()) {
                search.order[next.as_str()]
            } else {
                continue;
            };
            let low = search.low.get_mut(node).expect("set above");
            *low = reached.min(*low);
        }
        if search.low[node] == number {
            let from = search.stack.iter().position(|on| *on == node).expect("pushed above");
            let mut members: Vec<String> = search.stack.drain(from..).map(str::to_owned).collect();
            members.sort();
            search.found.extend((members.len() > 1).then_some(members));
        }
    }
    let mut search = Search::default();
    for node in graph.keys() {
        if !search.order.contains_key(node.as_str()) {
            visit(&mut search, graph, node);
        }
    }
    search.found.sort();
    search.found
}

/// Path of a file by its folders; `foo.rs` belongs to the folder `foo` if there is one.
fn place(file: &str, files: &Graph) -> Vec<String> {
    let own = format!("{}/", file.trim_end_matches(".rs"));
    let is_parent = files.keys().any(|other| other.starts_with(&own));
    let path = if is_parent { format!("{own}mod.rs") } else { file.to_owned() };
    path.split('/').map(str::to_owned).collect()
}

/// Circles among the entries of a folder of which at least one is a folder itself.
fn folder_circles(files: &Graph) -> Vec<Vec<String>> {
    let places: BTreeMap<&String, Vec<String>> =
        files.keys().map(|file| (file, place(file, files))).collect();
    let mut folders: BTreeMap<String, Graph> = BTreeMap::new();
    for (from, targets) in files {
        for to in targets {
            let (a, b) = (&places[from], &places[to]);
            let common = a.iter().zip(b).take_while(|(a, b)| a == b).count();
            let entry = |place: &[String]| {
                let end = if place.len() > common + 1 { "/" } else { "" };
                format!("{}{end}", place[..=common].join("/"))
            };
            let folder = folders.entry(a[..common].join("/")).or_default();
            folder.entry(entry(b)).or_default();
            folder.entry(entry(a)).or_default().insert(entry(b));
        }
    }
    let found = folders.values().flat_map(circles);
    found.filter(|circle| circle.iter().any(|entry| entry.ends_with('/'))).collect()
}

/// Root files of all crates.
fn roots() -> Vec<String> {
    let root = root();
    let entries = fs::read_dir(root.join("crates")).expect("crates/ is there");
    let names = entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned());
    let mut dirs: Vec<String> = names.map(|name| format!("crates/{name}/src")).collect();
    dirs.extend(["judges/src".to_owned(), "xtask/src".to_owned()]);
    dirs.sort();
    let files = dirs.iter().flat_map(|dir| [format!("{dir}/lib.rs"), format!("{dir}/main.rs")]);
    files.filter(|file| root.join(file).exists()).collect()
}

/// Faults of the found circles: unknown ones, and known ones that are gone or have changed.
fn faults(found: &[Vec<String>], known: &[(&[&str], &str)]) -> Vec<String> {
    let is_new = |circle: &&Vec<String>| !known.iter().any(|(known, _)| known == circle);
    let new = found.iter().filter(is_new).map(|circle| format!("a circle: {}", circle.join(", ")));
    let is_gone = |known: &&(&[&str], &str)| !found.iter().any(|circle| circle == known.0);
    let gone = known.iter().filter(is_gone);
    let gone = gone.map(|(known, _)| format!("gone, take it out of the list: {}", known.join(", ")));
    new.chain(gone).collect()
}

/// Edges between the entries of a circle, which show where it can be cut.
fn edges(circle: &[String], graph: &Graph) -> String {
    let entry = |file: &str| {
        let path = place(file, graph).join("/");
        circle.iter().position(|entry| *entry == file || entry.ends_with('/') && path.starts_with(entry))
    };
    let inside = graph.iter().filter_map(|(from, to)| {
        let here = entry(from)?;
        let to = to.iter().filter(|to| entry(to).is_some_and(|there| there != here));
        let to: Vec<&str> = to.map(String::as_str).collect();
        (!to.is_empty()).then(|| format!("    {from} uses {}\n", to.join(", ")))
    });
    inside.collect()
}

#[test]
fn imports_form_no_circles() {
    let root = root();
    let read = |path: &str| fs::read_to_string(root.join(Path::new(path))).ok();
    let (mut files, mut found, mut shown) = (0, Vec::new(), String::new());
    for crate_root in roots() {
        let graph = graph(&modules(&crate_root, &read));
        files += graph.len();
        for circle in circles(&graph).into_iter().chain(folder_circles(&graph)) {
            shown += &format!("{}:\n{}", circle.join(", "), edges(&circle, &graph));
            found.push(circle);
        }
    }
    let faults = faults(&found, KNOWN);
    assert!(files > 400, "{files} files: where are they looked for?");
    assert!(
        faults.is_empty(),
        "{} faults of {files} files:\n{}\nall circles:\n{shown}",
        faults.len(),
        faults.join("\n")
    );
}

#[test]
fn imports_in_circles_that_are_not_as_they_were_are_told() {
    let found = [vec!["a.rs".to_owned(), "b.rs".to_owned()]];
    let known: (&[&str], &str) = (&["a.rs", "b.rs"], "why");
    assert_eq!(faults(&found, &[known]), Vec::<String>::new());
    assert_eq!(faults(&found, &[]), ["a circle: a.rs, b.rs"]);
    assert_eq!(faults(&[], &[known]), ["gone, take it out of the list: a.rs, b.rs"]);
    let larger = (&["a.rs", "b.rs", "c.rs"][..], "why");
    assert_eq!(faults(&found, &[larger]).len(), 2, "one that shrank is another one");
}

/// Circles of files and circles of folders in a crate of these files.
#[cfg(test)]
fn circles_of(files: &[(&str, &str)]) -> (Vec<Vec<String>>, Vec<Vec<String>>) {
    let read = |path: &str| {
        files.iter().find(|(name, _)| format!("c/{name}") == path).map(|(_, text)| (*text).to_owned())
    };
    let graph = graph(&modules("c/lib.rs", &read));
    (circles(&graph), folder_circles(&graph))
}

#[test]
fn imports_in_circles_are_found() {
    let none: Vec<Vec<String>> = Vec::new();
    let found = |files: &[(&str, &str)]| circles_of(files).0;
    let lib = ("lib.rs", "mod a; mod b; mod d; pub use a::A;");
    let d = ("d.rs", "pub use crate::b::B;");
    let line = [lib, d, ("a.rs", "use crate::d::B; pub struct A(B);"), ("b.rs", "pub struct B;")];
    assert_eq!(found(&line), none);
    for back in [
        "use crate::A; pub struct B(Box<A>);",
        "pub struct B(Box<super::a::A>);",
        "pub struct B; fn f() { format!(\"{}\", crate::a::A::x()); }",
        "pub struct B; fn f() { use crate::a::A; }",
        "pub struct B; mod inner { use super::super::a; fn f() { a::x() } }",
        "use crate::a::*; pub struct B;",
    ] {
        let files = [lib, d, line[2], ("b.rs", back)];
        assert_eq!(found(&files), [["c/a.rs", "c/b.rs"]], "{back}");
    }
    let tests = "pub struct B; #[cfg(test)] mod tests { use crate::A; }";
    assert_eq!(found(&[lib, d, line[2], ("b.rs", tests)]), none);
}

#[test]
fn imports_of_a_parent_are_circles_if_it_uses_its_child() {
    let child = ("a.rs", "use crate::Root; pub fn f(_: &Root) {} pub struct A;");
    let circle = [["c/a.rs", "c/lib.rs"]];
    let found = |lib: &str| circles_of(&[("lib.rs", lib), child]).0;
    assert_eq!(found("mod a; pub struct Root; pub use a::{A, f};"), Vec::<Vec<String>>::new());
    assert_eq!(found("mod a; pub struct Root; use a::f;"), circle);
    assert_eq!(found("mod a; pub struct Root; fn g() { a::f(&Root) }"), circle);
    assert_eq!(found("mod a; pub struct Root(A); pub use a::A;"), circle);
}

#[test]
fn imports_in_circles_of_folders_are_found() {
    let (files, folders) = circles_of(&[
        ("lib.rs", "mod a; mod b;"),
        ("a.rs", "mod x; mod y;"),
        ("a/x.rs", "use crate::b::B; pub struct X(B);"),
        ("a/y.rs", "pub struct Y;"),
        ("b.rs", "use crate::a::y::Y; pub struct B(Y);"),
    ]);
    assert_eq!(files, Vec::<Vec<String>>::new());
    assert_eq!(folders, [["c/a/", "c/b.rs"]]);
}
