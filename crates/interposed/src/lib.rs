//! `#[interposed]`: a function that stands before one of the C library's, under its name.
//!
//! Invariant: `errno` is after a success as it was before. What this library does for itself (it
//! opens the volume, waits for a lock, asks the host where a path leads) uses the C library, too, and
//! leaves any value there. Programs look at `errno` after a success where a function tells its end or
//! its failure by it alone: `readdir`, `strtol` behind a `read`.
//!
//! ```text
//! #[interposed]                              #[unsafe(no_mangle)]
//! unsafe extern "C" fn close(fd: c_int)      unsafe extern "C" fn close(fd: c_int) -> c_int {
//!     -> c_int                           ─►      unsafe extern "C" fn close(fd: c_int) -> c_int { … }
//! { … }                                          errno, close(fd), errno again after a success
//!                                            }
//! ```
//! Nothing is dropped behind the call: a cancelled thread is unwound through it. The crate that uses
//! this has `answer::before`, whose `restore` knows how each type of result tells a failure.

use proc_macro::{Delimiter, Group, Ident, TokenStream, TokenTree};

/// See the crate.
#[proc_macro_attribute]
pub fn interposed(_: TokenStream, item: TokenStream) -> TokenStream {
    let tokens: Vec<TokenTree> = item.into_iter().collect();
    let at = |word: &str| {
        let is_word =
            |token: &TokenTree| matches!(token, TokenTree::Ident(it) if it.to_string() == word);
        let place = tokens.iter().position(is_word);
        place.unwrap_or_else(|| panic!("an interposed function is an `{word}` one"))
    };
    let (signature, function) = (at("unsafe"), at("fn"));
    let (before, rest) = tokens.split_at(signature);
    let (body, signature) = rest.split_last().expect("a function has a body");
    let name = tokens[function + 1].clone();
    let Some(TokenTree::Group(arguments)) = tokens.get(function + 2) else {
        panic!("an interposed function has no type parameters");
    };
    let given = TokenTree::Group(Group::new(Delimiter::Parenthesis, names(arguments)));

    let mut inner = text("#[inline(always)]");
    inner.extend(signature.iter().cloned());
    inner.extend([body.clone()]);
    inner.extend(text(
        "let errno = crate::runtime::answer::before(); let result = unsafe",
    ));
    let call: TokenStream = [name, given].into_iter().collect();
    inner.extend([TokenTree::Group(Group::new(Delimiter::Brace, call))]);
    inner.extend(text("; errno.restore(&result); result"));

    let mut outer: TokenStream = before.iter().cloned().collect();
    // Attributes come before the visibility.
    let mut all = text("#[unsafe(no_mangle)]");
    all.extend(std::mem::take(&mut outer));
    all.extend(signature.iter().cloned());
    all.extend([TokenTree::Group(Group::new(Delimiter::Brace, inner))]);
    all
}

fn text(text: &str) -> TokenStream {
    text.parse().expect("tokens")
}

/// The names of the arguments, with commas.
fn names(arguments: &Group) -> TokenStream {
    let mut names = TokenStream::new();
    let mut is_name = true;
    for token in arguments.stream() {
        match token {
            TokenTree::Ident(name) if is_name && name.to_string() != "mut" => {
                names.extend([TokenTree::Ident(Ident::new(&name.to_string(), name.span()))]);
                names.extend(text(","));
                is_name = false;
            }
            TokenTree::Punct(mark) if mark.as_char() == ',' => is_name = true,
            _ => {}
        }
    }
    names
}
