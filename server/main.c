// fusewired: arguments, config, threads, signals, drain, exit code.
int main(void) { return 0; }
