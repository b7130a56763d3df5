//! `#[interposed]`: a function that stands before one of the C library's, under its name.
//!
//! In its body `real(…)` is the C library's function, which takes the same arguments. Names behind
//! the attribute, `#[interposed(open64)]`, are functions with the same body, each before its own of
//! the C library.
//!
//! Invariant: `errno` is after a success as it was before. What this library does for itself (it
//! opens the volume, waits for a lock, asks the host where a path leads) uses the C library, too, and
//! leaves any value there. Programs look at `errno` after a success where a function tells its end or
//! its failure by it alone: `readdir`, `strtol` behind a `read`.
//!
//! ```text
//! #[interposed]                              #[unsafe(no_mangle)]
//! unsafe extern "C" fn close(fd: c_int)      unsafe extern "C" fn close(fd: c_int) -> c_int {
//!     -> c_int                           ─►      unsafe extern "C" fn close(fd: c_int) -> c_int {
//! { … }                                              fn real(fd: c_int) -> c_int { real!(…) }
//!                                                    …
//!                                                }
//!                                                errno, close(fd), errno again after a success
//!                                            }
//! ```
//! Nothing is dropped behind the call: a cancelled thread is unwound through it. The crate that
//! uses this has `runtime::real::real!`, and `runtime::answer::before`, whose `restore` knows how
//! each type of result tells a failure.

use proc_macro::{Delimiter, Group, Ident, Punct, Spacing, TokenStream, TokenTree};

/// See the crate.
#[proc_macro_attribute]
pub fn interposed(others: TokenStream, item: TokenStream) -> TokenStream {
    let function = Function::of(item);
    let mut all = function.named(&function.name);
    for other in others {
        match other {
            TokenTree::Ident(name) => all.extend(function.named(&name)),
            mark => assert_eq!(mark.to_string(), ",", "other names, with commas"),
        }
    }
    all
}

/// The parts of a function.
struct Function {
    /// Attributes and visibility.
    before: TokenStream,
    /// `unsafe extern "C"`.
    kind: TokenStream,
    name: Ident,
    arguments: Group,
    /// `-> type`, if there is one.
    result: TokenStream,
    body: TokenStream,
}

impl Function {
    fn of(item: TokenStream) -> Function {
        let tokens: Vec<TokenTree> = item.into_iter().collect();
        let at = |word: &str| {
            let is_word =
                |token: &TokenTree| matches!(token, TokenTree::Ident(it) if it.to_string() == word);
            let place = tokens.iter().position(is_word);
            place.unwrap_or_else(|| panic!("an interposed function is an `{word}` one"))
        };
        let (kind, function) = (at("unsafe"), at("fn"));
        let [
            TokenTree::Ident(name),
            TokenTree::Group(arguments),
            result @ ..,
            body,
        ] = &tokens[function + 1..]
        else {
            panic!(
                "an interposed function has a name, arguments and a body, and no type parameters"
            );
        };
        let TokenTree::Group(body) = body else {
            panic!("an interposed function has a body");
        };
        Function {
            before: tokens[..kind].iter().cloned().collect(),
            kind: tokens[kind..function].iter().cloned().collect(),
            name: name.clone(),
            arguments: arguments.clone(),
            result: result.iter().cloned().collect(),
            body: body.stream(),
        }
    }

    /// The function before the C library's of this name.
    fn named(&self, name: &Ident) -> TokenStream {
        let (names, types) = names_and_types(&self.arguments);
        let given = names.iter().flat_map(|name| [name.clone(), comma()]);

        let mut body = text("#[inline(always)] #[allow(dead_code)] fn real");
        body.extend(self.signature_rest());
        body.extend([braces(self.real(name, &names, &types))]);
        body.extend(self.body.clone());

        let mut inner = text("#[inline(always)]");
        inner.extend(self.signature(name));
        inner.extend([braces(body)]);
        inner.extend(text(
            "let errno = crate::runtime::answer::before(); let result = unsafe",
        ));
        let call = [TokenTree::Ident(name.clone()), parentheses(given.collect())];
        inner.extend([braces(call.into_iter().collect())]);
        inner.extend(text("; errno.restore(&result); result"));

        // Attributes come before the visibility.
        let mut all = text("#[unsafe(no_mangle)]");
        all.extend(self.before.clone());
        all.extend(self.signature(name));
        all.extend([braces(inner)]);
        all
    }

    fn signature(&self, name: &Ident) -> TokenStream {
        let mut signature = self.kind.clone();
        signature.extend(text("fn"));
        signature.extend([TokenTree::Ident(name.clone())]);
        signature.extend(self.signature_rest());
        signature
    }

    fn signature_rest(&self) -> TokenStream {
        let mut rest: TokenStream = [TokenTree::Group(self.arguments.clone())]
            .into_iter()
            .collect();
        rest.extend(self.result.clone());
        rest
    }

    /// `real!(name(argument => type, …) -> result)`
    fn real(&self, name: &Ident, names: &[TokenTree], types: &[TokenStream]) -> TokenStream {
        let mut arguments = TokenStream::new();
        for (name, of) in names.iter().zip(types) {
            arguments.extend([name.clone()]);
            arguments.extend(text("=>"));
            arguments.extend(of.clone());
            arguments.extend([comma()]);
        }
        let mut call: TokenStream = [TokenTree::Ident(name.clone()), parentheses(arguments)]
            .into_iter()
            .collect();
        if self.result.is_empty() {
            call.extend(text("-> ()"));
        }
        call.extend(self.result.clone());
        let mut real = text("crate::runtime::real::real!");
        real.extend([parentheses(call)]);
        real
    }
}

fn text(text: &str) -> TokenStream {
    text.parse().expect("tokens")
}

fn comma() -> TokenTree {
    TokenTree::Punct(Punct::new(',', Spacing::Alone))
}

fn braces(of: TokenStream) -> TokenTree {
    TokenTree::Group(Group::new(Delimiter::Brace, of))
}

fn parentheses(of: TokenStream) -> TokenTree {
    TokenTree::Group(Group::new(Delimiter::Parenthesis, of))
}

/// Of the arguments. No type has a comma outside of parentheses.
fn names_and_types(arguments: &Group) -> (Vec<TokenTree>, Vec<TokenStream>) {
    let tokens: Vec<TokenTree> = arguments.stream().into_iter().collect();
    let is_comma =
        |token: &TokenTree| matches!(token, TokenTree::Punct(mark) if mark.as_char() == ',');
    let given = tokens
        .split(is_comma)
        .filter(|argument| !argument.is_empty());
    let parts = given.map(|argument| {
        let is_colon =
            |token: &TokenTree| matches!(token, TokenTree::Punct(mark) if mark.as_char() == ':');
        let colon = argument
            .iter()
            .position(is_colon)
            .expect("an argument has a type");
        let of = argument[colon + 1..].iter().cloned().collect();
        (argument[colon - 1].clone(), of)
    });
    parts.unzip()
}
