;; A whole policy without any toolchain: the worker of each role that has the fewest requests, by row number where some
;; have as few. It shows what the interface looks like from a guest's memory.
;;
;; Memory: 1024 the answer, 1100 texts, from 4096 on the arguments. Where facts and answers have their parts is laid down
;; by the component model: each at the next address that its alignment allows, a list or text as its address and length.
(module
  (memory (export "memory") 2)
  (global $free (mut i32) (i32.const 4096))
  (data (i32.const 1100) "fewest-requests")
  (data (i32.const 1120) "1.0.0")
  (data (i32.const 1130) "The worker of each role that has the fewest requests.")
  (data (i32.const 1190) "{\"type\":\"object\",\"properties\":{},\"additionalProperties\":false}")
  (data (i32.const 1260) "fewest requests")
  (data (i32.const 1280) "takes no settings: remove the settings file")

  ;; Memory for arguments: the next free bytes, forgotten when the call ends.
  (func (export "cabi_realloc") (param $old i32) (param $old-bytes i32) (param $align i32) (param $bytes i32) (result i32)
    (local $at i32)
    (local.set $at (i32.and
      (i32.add (global.get $free) (i32.sub (local.get $align) (i32.const 1)))
      (i32.sub (i32.const 0) (local.get $align))))
    (global.set $free (i32.add (local.get $at) (local.get $bytes)))
    (block $fits
      (br_if $fits (i32.le_u (global.get $free) (i32.shl (memory.size) (i32.const 16))))
      (br_if $fits (i32.ne (i32.const -1) (memory.grow
        (i32.add (i32.const 1) (i32.shr_u (local.get $bytes) (i32.const 16))))))
      unreachable)
    (local.get $at))

  ;; Ends a call: the answer is at 1024, and the arguments' memory is free.
  (func $answer (result i32)
    (global.set $free (i32.const 4096))
    (i32.const 1024))

  (func $text (param $at i32) (param $text i32) (param $bytes i32)
    (i32.store (local.get $at) (local.get $text))
    (i32.store offset=4 (local.get $at) (local.get $bytes)))

  (func (export "sluice:policy/hooks@0.1.0#describe") (result i32)
    (call $text (i32.const 1024) (i32.const 1100) (i32.const 15))
    (call $text (i32.const 1032) (i32.const 1120) (i32.const 5))
    (call $text (i32.const 1040) (i32.const 1130) (i32.const 53))
    (call $text (i32.const 1048) (i32.const 1190) (i32.const 62))
    (call $answer))

  ;; Settings are JSON: `{}` is all that is taken.
  (func (export "sluice:policy/hooks@0.1.0#configure") (param $settings i32) (param $bytes i32) (result i32)
    (i32.store8 (i32.const 1024) (i32.ne (local.get $bytes) (i32.const 2)))
    (call $text (i32.const 1028) (i32.const 1280) (i32.const 43))
    (call $answer))

  ;; Element $row of the list of numbers at $list within the facts.
  (func $number (param $facts i32) (param $list i32) (param $row i32) (result i32)
    (i32.load (i32.add
      (i32.load (i32.add (local.get $facts) (local.get $list)))
      (i32.shl (local.get $row) (i32.const 2)))))

  (func $group (param $facts i32) (param $row i32) (result i32)
    (i32.load16_u (i32.add (i32.load offset=172 (local.get $facts)) (i32.shl (local.get $row) (i32.const 1)))))

  ;; The row of this role and group (-1: any) with the fewest requests, running and waiting; -1 where there is none.
  (func $least (param $facts i32) (param $role i32) (param $group i32) (result i32)
    (local $row i32) (local $requests i32) (local $best i32) (local $fewest i32)
    (local.set $best (i32.const -1))
    (block $done
      (loop $next
        (br_if $done (i32.ge_u (local.get $row) (i32.load offset=160 (local.get $facts))))
        (block $not-this
          (br_if $not-this (i32.ne (local.get $role)
            (i32.load8_u (i32.add (i32.load offset=156 (local.get $facts)) (local.get $row)))))
          ;; 8: it drains.
          (br_if $not-this (i32.and (i32.const 8) (i32.load16_u
            (i32.add (i32.load offset=164 (local.get $facts)) (i32.shl (local.get $row) (i32.const 1))))))
          (br_if $not-this (i32.and
            (i32.ne (local.get $group) (i32.const -1))
            (i32.ne (local.get $group) (call $group (local.get $facts) (local.get $row)))))
          (local.set $requests (i32.add
            (call $number (local.get $facts) (i32.const 188) (local.get $row))
            (call $number (local.get $facts) (i32.const 196) (local.get $row))))
          (br_if $not-this (i32.and
            (i32.ne (local.get $best) (i32.const -1))
            (i32.ge_u (local.get $requests) (local.get $fewest))))
          (local.set $best (local.get $row))
          (local.set $fewest (local.get $requests)))
        (local.set $row (i32.add (local.get $row) (i32.const 1)))
        (br $next)))
    (local.get $best))

  (func (export "sluice:policy/hooks@0.1.0#route") (param $facts i32) (result i32)
    (local $prefill i32) (local $decode i32) (local $alone i32)
    (memory.fill (i32.const 1024) (i32.const 0) (i32.const 48))
    ;; A route, with a reason, unless nobody is found below.
    (i32.store8 (i32.const 1024) (i32.const 1))
    (i32.store8 (i32.const 1052) (i32.const 1))
    (call $text (i32.const 1056) (i32.const 1260) (i32.const 15))
    (local.set $prefill (call $least (local.get $facts) (i32.const 1) (i32.const -1)))
    (local.set $decode (i32.const -1))
    (if (i32.ne (local.get $prefill) (i32.const -1)) (then
      (local.set $decode (call $least (local.get $facts) (i32.const 2)
        (call $group (local.get $facts) (local.get $prefill))))))
    (local.set $alone (call $least (local.get $facts) (i32.const 0) (i32.const -1)))
    (if (i32.ne (local.get $decode) (i32.const -1))
      (then
        ;; Disaggregated: prefill, decode now, pull, and the fewest tokens that are worth a fetch.
        (i32.store8 (i32.const 1028) (i32.const 1))
        (i32.store (i32.const 1032) (local.get $prefill))
        (i32.store (i32.const 1040) (local.get $decode))
        (i32.store (i32.const 1048) (i32.const 64)))
      (else (if (i32.ne (local.get $alone) (i32.const -1))
        (then (i32.store (i32.const 1032) (local.get $alone)))
        (else (i32.store8 (i32.const 1024) (i32.const 0))))))
    (call $answer))

  ;; The other decisions are left to the host.
  (func $use-default (result i32)
    (i32.store8 (i32.const 1024) (i32.const 0))
    (call $answer))
  (func (export "sluice:policy/hooks@0.1.0#bind-decode") (param i32) (result i32) (call $use-default))
  (func (export "sluice:policy/hooks@0.1.0#retain") (param i32) (result i32) (call $use-default))
  (func (export "sluice:policy/hooks@0.1.0#heartbeat") (param i32) (result i32) (call $use-default)))
