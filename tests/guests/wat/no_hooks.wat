;; A component of another world.
(component
  (core module $module)
  (export "my:own/thing" (core module $module)))
