//! The markers of a frame.

use super::parameters::ParameterMarkers;
use super::scan::Markers;
use super::syntax::{Body, Frame, Head};

/// Markers of a frame, ready to search for.
#[derive(Debug)]
pub struct FrameMarkers {
    pub between: Markers,
    pub name: Markers,
    /// What ends arguments: of the call and of the block.
    pub ends: Markers,
    /// Where JSON arguments begin, or end without having begun.
    pub arguments: Markers,
    pub parameters: Option<ParameterMarkers>,
}

impl FrameMarkers {
    pub fn new(frame: &'static Frame, openers: impl Iterator<Item = &'static str>) -> Self {
        let ends = || frame.end.iter().chain(frame.close).copied();
        let name = match &frame.head {
            Head::Json => Markers::new([]),
            Head::Name(name) | Head::Either(name) => {
                Markers::new(name.ends.iter().chain(name.stops).copied())
            }
        };
        let others = || ends().chain([frame.open, frame.call].into_iter().flatten().copied());
        let parameters = match &frame.body {
            Body::Json => None,
            Body::Parameters(syntax) => Some(ParameterMarkers::new(syntax, others())),
        };
        let arguments = Markers::new(ends().chain(["{"]));
        let between = Markers::new(ends().chain(frame.call.iter().copied()).chain(openers));
        Self { between, name, ends: Markers::new(ends()), arguments, parameters }
    }
}
