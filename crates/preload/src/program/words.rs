//! Arguments and environments, as C has them.

use libc::c_char;

/// An array of C strings with a NULL at its end; or NULL.
pub(crate) type Words = *const *const c_char;

/// The strings of an array.
///
/// # Safety
/// An array of C strings with a NULL at its end, or NULL. It outlives the result.
pub(crate) unsafe fn entries(of: Words) -> impl Iterator<Item = *const c_char> {
    let mut at = of;
    std::iter::from_fn(move || {
        // SAFETY: promised by the caller: the NULL at the end is not passed.
        let entry = unsafe { at.as_ref() }.filter(|entry| !entry.is_null())?;
        // SAFETY: as above.
        at = unsafe { at.add(1) };
        Some(*entry)
    })
}
