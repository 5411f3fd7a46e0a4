"""One model, several renderings: `build_model(inputs)` and `render_all(model, folder)`."""
