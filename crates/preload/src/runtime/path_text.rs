//! Paths by their text alone.

/// Without `.`, `..` and repeated slashes, by its text; without a slash at the end but in "/".
pub(crate) fn normalized(path: &[u8]) -> Vec<u8> {
    let mut components: Vec<&[u8]> = Vec::new();
    for component in path.split(|byte| *byte == b'/') {
        match component {
            b"" | b"." => {}
            b".." => _ = components.pop(),
            name => components.push(name),
        }
    }
    if path.first() != Some(&b'/') {
        return components.join(&b'/');
    }
    let mut result = Vec::with_capacity(path.len());
    for component in &components {
        result.push(b'/');
        result.extend_from_slice(component);
    }
    if result.is_empty() {
        result.push(b'/');
    }
    result
}

/// Has it a `..`?
pub(crate) fn goes_up(path: &[u8]) -> bool {
    path.split(|byte| *byte == b'/').any(|name| name == b"..")
}

/// An absolute path without `.` and repeated slashes.
pub(crate) fn squeezed(path: &[u8]) -> Vec<u8> {
    let names = path.split(|byte| *byte == b'/');
    let names = names.filter(|name| !matches!(*name, b"" | b"."));
    names.flat_map(|name| [b"/", name].concat()).collect()
}
