//! The header says what the functions here are: their signatures, the constants, and the layouts of structures.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::offset_of;
use std::path::Path;

use cableway::{Element, ReduceOperation};
use syn::{FnArg, Item, ItemFn, ReturnType, Type};

use crate::active::Info;
use crate::arguments::UNDEFINED;
use crate::code::Code;
use crate::neighbors::Neighbor;
use crate::registration::RemoteKey;
use crate::status::{ANY_SOURCE, ANY_TAG, Status};

const HEADER: &str = concat!(
    include_str!("../include/cableway.h"),
    include_str!("../include/cableway_active.h"),
    include_str!("../include/cableway_collective.h"),
    include_str!("../include/cableway_one_sided.h"),
    include_str!("../include/cableway_stream.h")
);

/// Returns the header without comments and lines of the preprocessor.
fn code() -> String {
    let mut code = String::new();
    let mut rest = HEADER;
    while let Some(begin) = rest.find("/*") {
        code.push_str(&rest[..begin]);
        let end = rest[begin..].find("*/").expect("comments end");
        rest = &rest[begin + end + 2..];
    }
    code.push_str(rest);
    code.lines().filter(|line| !line.starts_with('#')).collect::<Vec<_>>().join("\n")
}

/// Returns the words and signs of a text, with one blank between them.
fn normal(text: &str) -> String {
    let mut normal = String::new();
    let mut in_word = false;
    for c in text.chars() {
        let is_word = c.is_alphanumeric() || c == '_';
        let joined = normal.is_empty() || normal.ends_with(' ') || (in_word && is_word);
        if !joined && !c.is_whitespace() {
            normal.push(' ');
        }
        match c.is_whitespace() {
            true if in_word => normal.push(' '),
            true => {}
            false => normal.push(c),
        }
        in_word = is_word;
    }
    normal.trim().to_owned()
}

/// Returns the declarations of functions in the header.
fn declared() -> BTreeSet<String> {
    let code = code();
    let statements = code.split(';').map(|statement| statement.rsplit(['{', '}']).next().unwrap_or_default());
    let statements = statements.filter(|statement| statement.contains('(') && !statement.contains("typedef"));
    statements.map(normal).collect()
}

/// Returns the declarations of the functions that the library exports.
fn exported() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for entry in std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("src")).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        let buffers = path.ends_with("device.rs");
        for item in syn::parse_file(&text).unwrap().items {
            if let Item::Fn(function) = item
                && function.sig.abi.is_some()
            {
                assert_eq!(function.attrs.iter().filter(|attribute| attribute.path().is_ident("unsafe")).count(), 1);
                found.insert(normal(&declaration(&function, buffers)));
            }
        }
    }
    found
}

fn declaration(function: &ItemFn, buffers: bool) -> String {
    let result = match &function.sig.output {
        ReturnType::Type(_, result) => c_type(result, buffers),
        ReturnType::Default => "void".to_owned(),
    };
    let parameters = function.sig.inputs.iter().map(|input| {
        let FnArg::Typed(input) = input else { panic!("{} has a receiver", function.sig.ident) };
        let syn::Pat::Ident(name) = &*input.pat else { panic!("{} has a pattern", function.sig.ident) };
        format!("{} {}", c_type(&input.ty, buffers), name.ident)
    });
    let parameters: Vec<_> = parameters.collect();
    let parameters = if parameters.is_empty() { "void".to_owned() } else { parameters.join(", ") };
    format!("{result} {}({parameters})", function.sig.ident)
}

/// Returns a type as C writes it. `buffers`: a handle of `Memory` is one of a device buffer.
fn c_type(rust: &Type, buffers: bool) -> String {
    match rust {
        Type::Ptr(pointer) => {
            let to = c_type(&pointer.elem, buffers);
            match (pointer.const_token.is_some(), to.ends_with('*')) {
                (true, true) => format!("{to} const *"),
                (true, false) => format!("const {to} *"),
                (false, _) => format!("{to} *"),
            }
        }
        Type::Path(path) => {
            let last = path.path.segments.last().unwrap();
            let name = last.ident.to_string();
            let name = match &last.arguments {
                syn::PathArguments::AngleBracketed(inside) if name == "Handle" => match inside.args.first().unwrap() {
                    syn::GenericArgument::Type(Type::Path(named)) => named.path.require_ident().unwrap().to_string(),
                    _ => panic!("a handle of no type"),
                },
                _ => name,
            };
            let c = match &*name {
                "c_int" => "int",
                "c_char" => "char",
                "c_void" => "void",
                "usize" => "size_t",
                "u32" => "uint32_t",
                "u64" => "uint64_t",
                "i64" => "int64_t",
                "World" => "cableway_world",
                "Communicator" => "cableway_communicator",
                "Handled" => "cableway_communicator *",
                "Datatype" => "cableway_datatype",
                "Base" => "const cableway_datatype *",
                "Request" => "cableway_request",
                "Memory" if buffers => "cableway_device_buffer",
                "Status" => "cableway_status",
                "Registration" => "cableway_registration",
                "RemoteKey" => "cableway_remote_key",
                "Message" => "cableway_am",
                "Info" => "cableway_am_info",
                "Handler" => "cableway_am_handler",
                "Completion" => "cableway_am_completion",
                "Condition" => "cableway_condition",
                "Parameter" => "cableway_parameter",
                "Stream" => "cableway_stream",
                "Prepared" => "cableway_prepared",
                "Neighbor" => "cableway_neighbor",
                _ => panic!("the type {name} has no name in C"),
            };
            c.to_owned()
        }
        _ => panic!("C has no such type"),
    }
}

#[test]
fn the_header_declares_what_is_exported() {
    let (declared, exported) = (declared(), exported());
    assert!(exported.len() > 50, "{exported:?}");
    let missing: Vec<_> = exported.difference(&declared).collect();
    let unknown: Vec<_> = declared.difference(&exported).collect();
    assert!(missing.is_empty() && unknown.is_empty(), "not declared: {missing:#?}, not exported: {unknown:#?}");
}

#[test]
fn declarations_are_compared_by_words() {
    assert_eq!(normal("int  f(const void *a,\n  size_t b)"), "int f ( const void * a , size_t b )");
    assert_ne!(normal("int f(int64_t a)"), normal("int f(uint64_t a)"));
}

/// Returns the constants of the header.
fn constants() -> BTreeMap<String, i64> {
    let named = |(name, value): (&str, &str)| {
        let value = value.trim().trim_matches(['(', ')', ',']).parse().ok()?;
        Some((name.trim().strip_prefix("CABLEWAY_")?.to_owned(), value))
    };
    let defined = HEADER.lines().filter_map(|line| line.strip_prefix("#define ")?.split_once(' '));
    let code = code();
    let listed = code.lines().filter_map(|line| line.split_once('='));
    defined.chain(listed).filter_map(named).collect()
}

#[test]
fn constants_have_the_numbers_of_the_header() {
    let mut expected: BTreeMap<String, i64> = BTreeMap::new();
    let mut expect = |name: &str, value: i64| assert_eq!(expected.insert(name.to_owned(), value), None, "{name}");
    for &(name, code) in Code::ALL {
        expect(&in_capitals(name), code as i64);
    }
    const ELEMENTS: [&str; 20] = [
        "INT8",
        "INT16",
        "INT32",
        "INT64",
        "UINT8",
        "UINT16",
        "UINT32",
        "UINT64",
        "FLOAT16",
        "FLOAT",
        "DOUBLE",
        "FLOAT_COMPLEX",
        "DOUBLE_COMPLEX",
        "FLOAT_INT",
        "DOUBLE_INT",
        "INT64_INT",
        "2INT",
        "INT16_INT",
        "2FLOAT",
        "2DOUBLE",
    ];
    use Element as E;
    let elements = [
        E::I8,
        E::I16,
        E::I32,
        E::I64,
        E::U8,
        E::U16,
        E::U32,
        E::U64,
        E::F16,
        E::F32,
        E::F64,
        E::Complex32,
        E::Complex64,
        E::FloatInt,
        E::DoubleInt,
        E::LongInt,
        E::TwoInt,
        E::ShortInt,
        E::TwoFloat,
        E::TwoDouble,
    ];
    assert_eq!(elements, Element::ALL, "the numbers are positions in this table");
    for (name, number) in ELEMENTS.iter().zip(1..) {
        expect(name, number);
    }
    for (operation, number) in ReduceOperation::ALL.iter().zip(1..) {
        let name = in_capitals(&format!("{operation:?}"));
        // MPI writes these without an underscore.
        expect(&name.replace("MIN_LOC", "MINLOC").replace("MAX_LOC", "MAXLOC"), number);
    }
    for (name, number) in [("MEMORY_DEVICE", 1), ("MEMORY_MANAGED", 2), ("MEMORY_PINNED", 3)] {
        expect(name, number);
    }
    let numbered = [
        ("SIGNAL_", &["SET", "ADD"][..]),
        ("ATOMIC_", &["ADD", "SWAP", "COMPARE_SWAP", "AND", "OR", "XOR"]),
        ("VENDOR_", &["NVIDIA", "AMD"]),
        ("WAIT_", &["GREATER_EQUAL", "EQUAL", "AND", "NOR"]),
        ("", &["EQUAL", "NOT_EQUAL", "LESS", "LESS_EQUAL", "GREATER", "GREATER_EQUAL"]),
    ];
    for (prefix, names) in numbered {
        for (name, number) in names.iter().zip(1..) {
            expect(&format!("{prefix}{name}"), number);
        }
    }
    expect("ALL_TARGETS", crate::one_sided::ALL_TARGETS.into());
    expect("AM_HEADER_LIMIT", cableway::AM_HEADER_LIMIT as i64);
    expect("AM_INLINE_LIMIT", cableway::AM_INLINE_LIMIT as i64);
    expect("ANY_SOURCE", ANY_SOURCE.into());
    expect("ANY_TAG", ANY_TAG.into());
    expect("UNDEFINED", UNDEFINED.into());
    expect("VERSION_NUMBER", crate::version::NUMBER.into());
    assert_eq!(constants(), expected);
}

/// Converts `ErrPeerLeft` to `ERR_PEER_LEFT`.
fn in_capitals(name: &str) -> String {
    let mut capitals = String::new();
    for c in name.chars() {
        if c.is_uppercase() && !capitals.is_empty() {
            capitals.push('_');
        }
        capitals.push(c.to_ascii_uppercase());
    }
    capitals
}

/// Returns the fields of a structure, as the header declares them.
fn fields(structure: &str) -> Vec<String> {
    let code = code();
    let (_, fields) = code.split_once(&format!("typedef struct {structure} {{")).unwrap();
    fields.split_once('}').unwrap().0.split(';').map(normal).filter(|one| !one.is_empty()).collect()
}

#[test]
fn a_key_and_a_description_have_the_layout_of_the_header() {
    assert!(code().contains("unsigned char bytes[64];"));
    assert_eq!((size_of::<RemoteKey>(), align_of::<RemoteKey>()), (64, 1));
    let fields = fields("cableway_am_info");
    let declared = ["int source", "uint32_t id", "const void * header", "size_t header_bytes", "const void * data"];
    assert_eq!(fields[..5], declared);
    assert_eq!(fields[5..], ["uint64_t bytes"]);
    assert_eq!(
        [
            offset_of!(Info, source),
            offset_of!(Info, id),
            offset_of!(Info, header),
            offset_of!(Info, header_bytes),
            offset_of!(Info, data),
            offset_of!(Info, bytes),
            size_of::<Info>()
        ],
        [0, 4, 8, 16, 24, 32, 40]
    );
}

#[test]
fn a_neighbor_has_the_layout_of_the_header() {
    let declared =
        ["int rank", "uint16_t number", "void * buffer", "size_t count", "const cableway_datatype * datatype"];
    assert_eq!(fields("cableway_neighbor"), declared);
    assert_eq!(
        [
            offset_of!(Neighbor, rank),
            offset_of!(Neighbor, number),
            offset_of!(Neighbor, buffer),
            offset_of!(Neighbor, count),
            offset_of!(Neighbor, datatype),
            size_of::<Neighbor>()
        ],
        [0, 4, 8, 16, 24, 32]
    );
}

#[test]
fn a_status_has_the_layout_of_the_header() {
    let layout = |field: &str| code().find(field).unwrap_or_else(|| panic!("no {field}"));
    let order = ["int source;", "int tag;", "int cancelled;", "int error;", "uint64_t bytes;"].map(layout);
    assert!(order.is_sorted(), "{order:?}");
    assert_eq!(
        [
            offset_of!(Status, source),
            offset_of!(Status, tag),
            offset_of!(Status, cancelled),
            offset_of!(Status, error),
            offset_of!(Status, bytes),
            size_of::<Status>()
        ],
        [0, 4, 8, 12, 16, 24]
    );
}
