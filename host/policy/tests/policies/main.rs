//! The policy host, from files to answers.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod cache;
mod calls;
mod compile_process;
mod folder_trust;
mod followed;
mod guest;
mod hostile;
mod hostile_files;
mod load;
mod numbers;
mod other_languages;
mod put_aside;
mod reload;
mod rewrites;
mod superseded;
mod watch;
mod watch_folder;
