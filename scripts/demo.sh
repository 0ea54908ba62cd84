# ./dev demo : a real model, real texts, checked embeddings, and the fused/unfused table. Seconds the second time.
cmd_demo() {
  local started=$SECONDS
  need_packages "${PACKAGES_BUILD[@]}" "${PACKAGES_DEMO[@]}"
  need_python
  need_model
  build_preset release fusewired fusewire
  "$FW_PYTHON" "$FW_ROOT/scripts/demo.py"
  say "demo finished after $((SECONDS - started)) s"
}
