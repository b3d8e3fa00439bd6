//! Whether the other side lives. Pure: time is an argument.

/// Since when nothing was heard. Whole frames count and bytes do not: a frame that never ends is silence.
#[derive(Debug, Clone, Copy)]
pub struct Liveness {
    ping_ms: u64,
    silence_ms: u64,
    heard_at_ms: u64,
    pinged_at_ms: u64,
}

/// What is to be done now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Due {
    /// Nothing for so long, in milliseconds.
    Wait(u64),
    /// Ask whether it is there.
    Ping,
    /// It is dead.
    Dead,
}

impl Liveness {
    /// Asked after `ping_ms` of silence, dead after `silence_ms`.
    #[must_use]
    pub fn new(ping_ms: u64, silence_ms: u64, now_ms: u64) -> Self {
        Self { ping_ms: ping_ms.max(1), silence_ms, heard_at_ms: now_ms, pinged_at_ms: now_ms }
    }

    /// A frame came.
    pub fn heard(&mut self, now_ms: u64) {
        self.heard_at_ms = now_ms;
    }

    /// What is due. A ping is counted as sent once it was due.
    pub fn due(&mut self, now_ms: u64) -> Due {
        let dead_in = (self.heard_at_ms + self.silence_ms).saturating_sub(now_ms);
        if dead_in == 0 {
            return Due::Dead;
        }
        let ping_in = (self.heard_at_ms.max(self.pinged_at_ms) + self.ping_ms).saturating_sub(now_ms);
        if ping_in == 0 {
            self.pinged_at_ms = now_ms;
            return Due::Ping;
        }
        Due::Wait(dead_in.min(ping_in))
    }

    /// After how much silence the other side is dead, in milliseconds.
    #[must_use]
    pub fn silence_ms(&self) -> u64 {
        self.silence_ms
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silent_side_is_pinged_and_then_dead() {
        let mut live = Liveness::new(10, 35, 100);
        let mut said = Vec::new();
        let mut now = 100;
        loop {
            match live.due(now) {
                Due::Wait(ms) => now += ms,
                due => said.push((now, due)),
            }
            if now >= 135 {
                break;
            }
        }
        assert_eq!(said, [(110, Due::Ping), (120, Due::Ping), (130, Due::Ping)]);
        assert_eq!(live.due(135), Due::Dead);
        live.heard(135);
        assert_eq!(live.due(136), Due::Wait(9));
    }

    #[test]
    fn a_side_that_speaks_is_never_pinged() {
        let mut live = Liveness::new(10, 35, 0);
        for now in (0..1_000).step_by(9) {
            live.heard(now);
            assert!(matches!(live.due(now), Due::Wait(_)), "at {now}");
        }
    }
}
