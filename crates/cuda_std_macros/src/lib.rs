//! The `#[kernel]` attribute of `cuda_std`.

use proc_macro::TokenStream;
use proc_macro2::TokenStream as TokenStream2;
use quote::quote;
use syn::punctuated::Punctuated;
use syn::{Error, FnArg, ItemFn, LitInt, Meta, Token, parse_macro_input};

/// Makes a function an entry of the PTX module.
///
/// `#[kernel(threads = 128, min_blocks = 2, barriers = 3)]`: `threads` is the largest block (`.maxntid`), `min_blocks` the
/// blocks that must fit on an SM (`.minnctapersm`, optional), `cluster` the blocks of a cluster, without which the kernel does not
/// launch (`.reqnctapercluster`, optional, sm_90), `barriers` how many `bar.sync` and cluster barriers the PTX has: the compiler has
/// cloned barriers before, so the builder fails on any other count. On the host target the function stays what it is, and
/// runs on the SIMT executor.
#[proc_macro_attribute]
pub fn kernel(arguments: TokenStream, item: TokenStream) -> TokenStream {
    let arguments = parse_macro_input!(arguments with Punctuated<Meta, Token![,]>::parse_terminated);
    let function = parse_macro_input!(item as ItemFn);
    expand(arguments, function).unwrap_or_else(Error::into_compile_error).into()
}

fn expand(arguments: Punctuated<Meta, Token![,]>, function: ItemFn) -> Result<TokenStream2, Error> {
    let mut marker = String::from("// kernel");
    let mut has_threads = false;
    let mut has_barriers = false;
    for argument in &arguments {
        let pair = argument.require_name_value()?;
        let name = pair.path.require_ident()?.to_string();
        match name.as_str() {
            "threads" => has_threads = true,
            "barriers" => has_barriers = true,
            "min_blocks" | "cluster" => (),
            _ => return Err(Error::new_spanned(pair, "expected threads, min_blocks, cluster or barriers")),
        }
        let value = &pair.value;
        let value: u32 = syn::parse2::<LitInt>(quote!(#value))?.base10_parse()?;
        marker += &format!(" {name}={value}");
    }
    if !(has_threads && has_barriers) {
        return Err(Error::new_spanned(&function.sig.ident, "a kernel states its threads and its barriers"));
    }

    let signature = &function.sig;
    if !signature.generics.params.is_empty() {
        return Err(Error::new_spanned(
            &signature.generics,
            "an entry has no generics: call a generic function from it",
        ));
    }
    if let Some(FnArg::Receiver(receiver)) = signature.inputs.first() {
        return Err(Error::new_spanned(receiver, "an entry takes no self"));
    }
    if !matches!(signature.output, syn::ReturnType::Default) {
        return Err(Error::new_spanned(&signature.output, "an entry returns nothing"));
    }

    let ItemFn { attrs, vis, sig, block } = function;
    let (name, inputs) = (&sig.ident, &sig.inputs);
    Ok(quote! {
        #[cfg(target_arch = "nvptx64")]
        #(#attrs)*
        #[unsafe(no_mangle)]
        #vis unsafe extern "ptx-kernel" fn #name(#inputs) {
            // SAFETY: a comment, which the builder moves into the entry's header.
            unsafe { ::core::arch::asm!(#marker, options(nomem, nostack, preserves_flags)) };
            #block
        }
        #[cfg(not(target_arch = "nvptx64"))]
        #(#attrs)*
        #vis #sig #block
    })
}
