//! The program that the loader has started: where it ends, and whether it is one of Go.

use libc::{c_int, c_void, dl_phdr_info, size_t};

/// What the loader tells of it.
pub(super) struct Program {
    /// Its code and data end here.
    pub(super) end: usize,
    /// Its stacks have no room for a signal's frame, which the kernel would put over other memory.
    pub(super) is_go: bool,
}

impl Program {
    pub(super) fn of_this_process() -> Program {
        let mut program = Program {
            end: usize::MAX,
            is_go: false,
        };
        // SAFETY: the function writes to this variable.
        unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut program).cast()) };
        program
    }
}

/// The first object that the loader names is the program.
unsafe extern "C" fn look(object: *mut dl_phdr_info, _: size_t, program: *mut c_void) -> c_int {
    // SAFETY: the loader's, for the time of this call; the variable above.
    let (object, program) = unsafe { (&*object, &mut *program.cast::<Program>()) };
    // SAFETY: as above.
    let headers = unsafe { std::slice::from_raw_parts(object.dlpi_phdr, object.dlpi_phnum.into()) };
    let of_kind = |kind| headers.iter().filter(move |header| header.p_type == kind);
    let begin = |header: &libc::Elf64_Phdr| (object.dlpi_addr + header.p_vaddr) as usize;
    let ends = of_kind(libc::PT_LOAD).map(|header| begin(header) + header.p_memsz as usize);
    program.end = ends.max().unwrap_or(usize::MAX);
    program.is_go = of_kind(libc::PT_NOTE).any(|header| {
        let len = header.p_memsz as usize;
        // SAFETY: a part of the program, which is loaded.
        let notes = unsafe { std::slice::from_raw_parts(begin(header) as *const u8, len) };
        has_go(notes, header.p_align.max(4) as usize)
    });
    1
}

/// Is one of the notes Go's? Each: the lengths of its name and of its content, its kind, and the two.
fn has_go(notes: &[u8], align: usize) -> bool {
    const HEAD_BYTES: usize = 12;
    let mut rest = notes;
    while let Some((head, behind)) = rest.split_at_checked(HEAD_BYTES) {
        let length = |at: usize| {
            let bytes = head[at..at + 4].try_into().expect("four bytes");
            u32::from_ne_bytes(bytes) as usize
        };
        let (name, content) = (length(0), length(4));
        if behind.get(..name) == Some(b"Go\0\0") {
            return true;
        }
        let next = name.next_multiple_of(align.min(4)) + content.next_multiple_of(align);
        let Some(behind) = behind.get(next..) else {
            break;
        };
        rest = behind;
    }
    false
}
