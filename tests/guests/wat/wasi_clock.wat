;; Reads the clock, as components for the second version of WASI do.
(component
  (import "wasi:clocks/wall-clock@0.2.0" (instance (export "now" (func (result u64)))))
  (instance $hooks)
  (export "sluice:policy/hooks@0.1.0" (instance $hooks)))
