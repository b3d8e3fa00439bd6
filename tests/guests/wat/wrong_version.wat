;; Made for a later version of the interface.
(component
  (instance $hooks)
  (export "sluice:policy/hooks@0.2.0" (instance $hooks)))
