//! `auto`, or the name of a kernel.

use keyhead::Error;
use std::str::FromStr;

/// `None` lets the plan choose.
#[derive(Clone, Copy)]
pub struct Auto<T>(pub Option<T>);

impl<T: FromStr<Err = Error>> FromStr for Auto<T> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "auto" {
            return Ok(Auto(None));
        }
        text.parse().map(|kernel| Auto(Some(kernel))).map_err(|error| match error {
            Error::Argument { accepted, .. } => format!("accepted: {accepted}"),
            other => other.to_string(),
        })
    }
}
