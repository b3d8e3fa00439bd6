//! Models as fast as they were seen to be, with what AWS measured of their second turns.

use sluice_harness::budget;

use super::stages::{STAGES, Seen};
use crate::plot::{Chart, Series};

/// Emulated KV, in bytes: real copies, of far less than a real model has.
pub const KV_BYTES_PER_TOKEN: usize = 256;

/// A model.
#[derive(Debug, Clone, Copy)]
pub struct Speed {
    /// As people call it.
    pub name: &'static str,
    /// So that prompts of 2k and of the longest take what they took without reuse.
    pub prefill_tokens_per_s: f64,
    /// The same, beside the tokens.
    pub prefill_base_ms: f64,
    /// In tokens.
    pub prompts: [usize; 5],
    /// Reading the longest prompt back from decode took so long, where engines move KV by themselves.
    transfer_ms: f64,
    /// Handing it over to decode: what AWS' first token came after the prefill's end.
    hand_over_ms: f64,
    /// Time to first token at the shortest and the longest prompt, off and on, as AWS measured it.
    pub aws_off_ms: (f64, f64),
    /// The same with what decode gave back.
    pub aws_on_ms: (f64, f64),
}

/// Those that AWS measured.
pub const SPEEDS: [Speed; 2] = [
    // Prefill took 153 ms for 2k tokens and 744 ms for 24k.
    Speed {
        name: "Qwen3-32B",
        prefill_tokens_per_s: 37_225.0,
        prefill_base_ms: 99.3,
        prompts: [2_000, 4_000, 8_000, 16_000, 24_000],
        transfer_ms: 130.0,
        hand_over_ms: 34.0,
        aws_off_ms: (158.0, 778.0),
        aws_on_ms: (122.0, 460.0),
    },
    // Prefill took 500 ms for 2k tokens and 2,331 ms for 20k.
    Speed {
        name: "GLM-5-FP8",
        prefill_tokens_per_s: 9_831.0,
        prefill_base_ms: 296.6,
        prompts: [2_000, 4_000, 8_000, 16_000, 20_000],
        transfer_ms: 110.0,
        hand_over_ms: 3.0,
        aws_off_ms: (500.0, 2_334.0),
        aws_on_ms: (358.0, 702.0),
    },
];

impl Speed {
    /// Prompts that are measured; `few` takes only the shortest and the longest.
    pub fn prompts(&self, few: bool) -> Vec<usize> {
        let [shortest, .., longest] = self.prompts;
        if few { vec![shortest, longest] } else { self.prompts.into() }
    }

    /// Arguments of engines that read KV from each other, prefill and decode: as fast as AWS' links.
    pub fn links(&self) -> [String; 2] {
        [self.transfer_ms, self.hand_over_ms].map(|ms| {
            let [.., longest] = self.prompts;
            let bytes_per_s = (longest * KV_BYTES_PER_TOKEN) as f64 / ms * 1_000.0;
            format!("--transfer-bytes-per-s {bytes_per_s:.0}")
        })
    }

    /// At the longest prompt, whichever way is worst.
    pub fn budget(&self, seen: &[Seen]) -> String {
        let gain = |off: &Seen, on: &Seen| Some(off.ttft_ms.last()? / on.ttft_ms.last()?);
        let gains: Vec<_> = seen.chunks_exact(2).filter_map(|pair| gain(&pair[0], &pair[1])).collect();
        let worst = gains.iter().copied().fold(f64::MAX, f64::min);
        let target = self.aws_off_ms.1 / self.aws_on_ms.1;
        let each =
            STAGES.chunks_exact(2).zip(&gains).map(|(pair, gain)| format!("{gain:.1}x {}", pair[1].how));
        let measured = each.collect::<Vec<_>>().join(", ");
        let name = format!("sessions.second_turn {}", self.name);
        budget::line(&name, &format!(">= {target:.1}x, as on AWS"), &measured, worst >= target)
    }

    /// All stages and AWS' figures over the prompt's length.
    pub fn chart(&self, prompts: &[usize], seen: &[Seen]) -> Chart {
        let ends = [prompts.first(), prompts.last()].map(|prompt| prompt.copied().unwrap_or(0) as f64);
        let aws = |name: &str, ms: (f64, f64)| Series {
            name: name.to_owned(),
            points: vec![(ends[0], ms.0), (ends[1], ms.1)],
        };
        let ours = STAGES.iter().zip(seen).map(|(stage, seen)| {
            let points =
                prompts.iter().zip(&seen.ttft_ms).map(|(prompt, ms)| (*prompt as f64, *ms)).collect();
            Series { name: stage.name(), points }
        });
        Chart {
            title: format!("second turns, speed of {}", self.name),
            x: "prompt, tokens".to_owned(),
            y: "time to first token, ms".to_owned(),
            series: ours.chain([aws("AWS off", self.aws_off_ms), aws("AWS on", self.aws_on_ms)]).collect(),
        }
    }
}
