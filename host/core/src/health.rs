//! Whether a worker is up, as a pure state machine: probes and traffic report, the machine says.

use serde::Serialize;

/// Probes in a row that must fail before a worker is down. One lost probe is noise.
pub const FAILED_PROBES_TO_DOWN: u32 = 2;

/// What is believed of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Not probed yet: takes no work.
    #[default]
    Unknown,
    /// Takes work.
    Up,
    /// Takes no work until a probe succeeds.
    Down,
}

/// A report on a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Report {
    /// `GET /health` answered 200.
    ProbeOk,
    /// It did not, in time.
    ProbeFailed,
    /// A request could not even connect: stronger than a probe, since real work met it.
    ConnectFailed,
}

/// The machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Health {
    /// What is believed now.
    pub state: State,
    failed_probes: u32,
}

impl Health {
    /// The belief after a report.
    pub fn after(self, report: Report) -> Self {
        match report {
            Report::ProbeOk => Self { state: State::Up, failed_probes: 0 },
            Report::ConnectFailed => Self { state: State::Down, failed_probes: self.failed_probes },
            Report::ProbeFailed => {
                let failed_probes = self.failed_probes.saturating_add(1);
                let state = match self.state {
                    State::Up if failed_probes < FAILED_PROBES_TO_DOWN => State::Up,
                    _ => State::Down,
                };
                Self { state, failed_probes }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Report::*;
    use super::*;

    #[test]
    fn reports_move_the_state() {
        for (reports, expected) in [
            (&[][..], State::Unknown),
            (&[ProbeOk], State::Up),
            (&[ProbeFailed], State::Down),
            (&[ProbeOk, ProbeFailed], State::Up),
            (&[ProbeOk, ProbeFailed, ProbeOk, ProbeFailed], State::Up),
            (&[ProbeOk, ProbeFailed, ProbeFailed], State::Down),
            (&[ProbeOk, ConnectFailed], State::Down),
            (&[ProbeOk, ConnectFailed, ProbeOk], State::Up),
        ] {
            let health = reports.iter().fold(Health::default(), |health, report| health.after(*report));
            assert_eq!(health.state, expected, "{reports:?}");
        }
    }
}
