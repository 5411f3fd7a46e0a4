mkdir -p reports
code=0
npu-matrix gate --base "$base" --run --run-base --impacted --reruns 3 @AWAITING@ \
  --junit reports/gate-junit.xml --code-quality reports/gate-code-quality.json \
  --comment reports/gate.md --sarif reports/gate.sarif || code=$?
npu-matrix lint . --verl "@VERL@" --diff "$base" || code=1
exit "$code"
