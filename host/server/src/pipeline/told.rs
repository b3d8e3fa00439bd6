#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Told {
    pub params: Option<Box<str>>,
    pub prompt_ids: Option<Vec<u32>>,
    pub output_ids: Option<Vec<u32>>,
}
