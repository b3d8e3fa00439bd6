;; Imports a function behind the name of the WIT's types.
(component
  (import "sluice:policy/types@0.1.0" (instance (export "now" (func))))
  (instance $hooks)
  (export "sluice:policy/hooks@0.1.0" (instance $hooks)))
