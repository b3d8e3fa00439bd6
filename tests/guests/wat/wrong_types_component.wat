;; A component whose hooks are called as ours and take other things.
(component
  (core module $module (func (export "f") (result i32) (i32.const 7)))
  (core instance $core (instantiate $module))
  (func $seven (result u32) (canon lift (core func $core "f")))
  (instance $hooks
    (export "describe" (func $seven))
    (export "configure" (func $seven))
    (export "route" (func $seven))
    (export "bind-decode" (func $seven))
    (export "retain" (func $seven))
    (export "heartbeat" (func $seven)))
  (export "sluice:policy/hooks@0.1.0" (instance $hooks)))
