"""`pathaware bench`: the speed of the engine, compared with other libraries and as tasks grow."""
