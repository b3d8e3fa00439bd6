;; Needs 64 MB to start.
;; All its answers lie at 1024, where there are zeroes: empty texts, "settings taken", "use the default".
(module
  (memory (export "memory") 1000)
  (func (export "cabi_realloc") (param $old i32) (param $old-bytes i32) (param $align i32) (param $bytes i32) (result i32)
    (i32.const 4096))
  (func (export "sluice:policy/hooks@0.1.0#describe") (result i32) (i32.const 1024))
  (func (export "sluice:policy/hooks@0.1.0#configure") (param i32 i32) (result i32) (i32.const 1024))
  (func (export "sluice:policy/hooks@0.1.0#route") (param i32) (result i32) (i32.const 1024))
  (func (export "sluice:policy/hooks@0.1.0#bind-decode") (param i32) (result i32) (i32.const 1024))
  (func (export "sluice:policy/hooks@0.1.0#retain") (param i32) (result i32) (i32.const 1024))
  (func (export "sluice:policy/hooks@0.1.0#heartbeat") (param i32) (result i32) (i32.const 1024)))
