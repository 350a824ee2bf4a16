//! `kubectl mooncake`: what the API server holds of Mooncake, told to a person or to a program.
//!
//! ```text
//! args --> connection --> survey --> Picture --> status, doctor, why, node, sizing --> table | JSON
//!          effects: each request has a deadline    pure: values in, values out
//! ```

pub mod age;
pub mod answer;
pub mod args;
pub mod connection;
pub mod doctor;
pub mod node;
pub mod page;
pub mod picture;
pub mod run;
pub mod sizing;
pub mod status;
pub mod survey;
pub mod unseen;
pub mod webhook;
pub mod why;

pub use answer::Answer;
pub use picture::Picture;
pub use run::run;
