;; A module whose exports are called as ours and have other types.
(module
  (memory (export "memory") 1)
  (func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32) (i32.const 4096))
  (func (export "sluice:policy/hooks@0.1.0#describe") (result i64) (i64.const 0))
  (func (export "sluice:policy/hooks@0.1.0#configure") (param f32) (result f32) (local.get 0))
  (func (export "sluice:policy/hooks@0.1.0#route"))
  (func (export "sluice:policy/hooks@0.1.0#bind-decode"))
  (func (export "sluice:policy/hooks@0.1.0#retain"))
  (func (export "sluice:policy/hooks@0.1.0#heartbeat")))
