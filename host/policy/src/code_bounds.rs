//! How much there is to compile, and where that is too much: a file is compiled beside the requests being served, and
//! the policies that changed with it wait for it.
//!
//! Size alone bounds neither time nor memory: joining many variables at many branches takes the compiler as much as
//! the two multiplied, and nested loops far more, so a file of 20 KB can keep it busy for minutes. Both products are
//! bounded, for each function and for all of a file.

use wasmparser::{FunctionBody, Operator};

use crate::load_error::Refusal;

// The bounds on shape are 4 to 5 times what was found in the largest guests there are, JavaScript engines of 10 MB;
// the times are CPU seconds of a compiler with its assertions on.

/// Code of one file, bytes. A Rust policy has some 50 KiB, a JavaScript engine 10 MiB. At 4 us a byte of ordinary code,
/// and ten times that of the slowest known, it takes a minute to ten.
pub const CODE_BYTES_MAX: u64 = 16 * 1024 * 1024;
/// Functions of one file; a JavaScript engine has 20,000.
pub const FUNCTIONS_MAX: u64 = 65_536;
/// Code of one function, bytes; the largest found has 180,000.
pub const FUNCTION_BYTES_MAX: u64 = 512 * 1024;
/// Branches times variables of one function; the most found is 480,000. At 20 bytes and up to 1 us each, 40 MB and 2 s.
pub const JOINS_MAX: u64 = 2_000_000;
/// The same of all functions of a file; the most found is 8 million. Up to 40 s.
pub const ALL_JOINS_MAX: u64 = 40_000_000;
/// Loops within loops of one function; the most found is 16. Compiling takes time with its square.
pub const LOOP_DEPTH_MAX: u64 = 64;
/// Depth of nested loops times variables of one function; the most found is 2,100. At 1.5 KB and up to 30 us each,
/// 15 MB and 0.3 s.
pub const LOOPED_MAX: u64 = 10_000;
/// The same of all functions of a file; the most found is 100,000. Up to 15 s.
pub const ALL_LOOPED_MAX: u64 = 500_000;

/// What is to be compiled.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CodeSize {
    pub(crate) bytes: u64,
    pub(crate) functions: u64,
    /// Of the largest function.
    pub(crate) function_bytes: u64,
    /// Of the function with the most.
    pub(crate) joins: u64,
    pub(crate) all_joins: u64,
    /// Of the function with the deepest.
    pub(crate) loop_depth: u64,
    /// Of the function with the most.
    pub(crate) looped: u64,
    pub(crate) all_looped: u64,
}

impl CodeSize {
    /// One more function.
    pub(crate) fn add(&mut self, body: &FunctionBody<'_>) -> wasmparser::Result<()> {
        let bytes = body.range().len() as u64;
        let shape = Shape::of(body)?;
        self.bytes += bytes;
        self.functions += 1;
        self.function_bytes = self.function_bytes.max(bytes);
        // No function has so many of either that this overflows.
        let (joins, looped) = (shape.branches * shape.variables, shape.loop_depth * shape.variables);
        self.joins = self.joins.max(joins);
        self.all_joins = self.all_joins.saturating_add(joins);
        self.loop_depth = self.loop_depth.max(shape.loop_depth);
        self.looped = self.looped.max(looped);
        self.all_looped = self.all_looped.saturating_add(looped);
        Ok(())
    }

    pub(crate) fn check(&self) -> Result<(), Refusal> {
        let bounds = [
            ("bytes of code", self.bytes, CODE_BYTES_MAX),
            ("functions", self.functions, FUNCTIONS_MAX),
            ("bytes of code in one function", self.function_bytes, FUNCTION_BYTES_MAX),
            ("branches times variables in one function", self.joins, JOINS_MAX),
            ("branches times variables in all functions", self.all_joins, ALL_JOINS_MAX),
            ("loops within each other", self.loop_depth, LOOP_DEPTH_MAX),
            ("nested loops times variables in one function", self.looped, LOOPED_MAX),
            ("nested loops times variables in all functions", self.all_looped, ALL_LOOPED_MAX),
        ];
        match bounds.into_iter().find(|(_, found, limit)| found > limit) {
            Some((what, found, limit)) => Err(Refusal::TooMuchCode { what, found, limit }),
            None => Ok(()),
        }
    }
}

/// What makes a function slow to compile.
#[derive(Debug, Default)]
struct Shape {
    branches: u64,
    loop_depth: u64,
    /// Those in use, parameters among them.
    variables: u64,
}

impl Shape {
    fn of(body: &FunctionBody<'_>) -> wasmparser::Result<Self> {
        let mut shape = Self::default();
        // Whether each open block is a loop.
        let mut open = Vec::new();
        let mut loops = 0_u64;
        for operator in body.get_operators_reader()? {
            match operator? {
                Operator::LocalGet { local_index }
                | Operator::LocalSet { local_index }
                | Operator::LocalTee { local_index } => {
                    shape.variables = shape.variables.max(u64::from(local_index) + 1);
                }
                Operator::Loop { .. } => {
                    shape.branches += 1;
                    loops += 1;
                    shape.loop_depth = shape.loop_depth.max(loops);
                    open.push(true);
                }
                Operator::Block { .. } | Operator::If { .. } | Operator::TryTable { .. } => {
                    shape.branches += 1;
                    open.push(false);
                }
                Operator::BrIf { .. } => shape.branches += 1,
                Operator::BrTable { targets } => shape.branches += u64::from(targets.len()),
                Operator::End => loops -= u64::from(open.pop().unwrap_or_default()),
                _ => {}
            }
        }
        Ok(shape)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bound_is_named() {
        let most = CodeSize {
            bytes: CODE_BYTES_MAX,
            functions: FUNCTIONS_MAX,
            function_bytes: FUNCTION_BYTES_MAX,
            joins: JOINS_MAX,
            all_joins: ALL_JOINS_MAX,
            loop_depth: LOOP_DEPTH_MAX,
            looped: LOOPED_MAX,
            all_looped: ALL_LOOPED_MAX,
        };
        assert!(most.check().is_ok());
        for (size, sentence) in [
            (
                CodeSize { bytes: CODE_BYTES_MAX + 1, ..most },
                "has 16777217 bytes of code, more than the 16777216",
            ),
            (CodeSize { functions: FUNCTIONS_MAX + 1, ..most }, "has 65537 functions"),
            (CodeSize { function_bytes: FUNCTION_BYTES_MAX + 1, ..most }, "bytes of code in one function"),
            (CodeSize { joins: JOINS_MAX + 1, ..most }, "branches times variables in one function"),
            (CodeSize { all_joins: ALL_JOINS_MAX + 1, ..most }, "branches times variables in all functions"),
            (CodeSize { loop_depth: LOOP_DEPTH_MAX + 1, ..most }, "65 loops within each other"),
            (CodeSize { looped: LOOPED_MAX + 1, ..most }, "nested loops times variables in one function"),
            (
                CodeSize { all_looped: ALL_LOOPED_MAX + 1, ..most },
                "nested loops times variables in all functions",
            ),
        ] {
            let found = size.check().unwrap_err().to_string();
            assert!(found.contains(sentence), "{found}");
        }
    }
}
