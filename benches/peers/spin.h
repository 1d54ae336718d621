/* A kernel that runs for so many nanoseconds, by the device's clock: that of `cableway pingpong --kernel`. */
static const char spin_ptx[] = ".version 6.3\n.target sm_52\n.address_size 64\n"
                               ".visible .entry cableway_spin(\n.param .u64 cableway_spin_param_0\n)\n{\n"
                               ".reg .pred %p<2>;\n.reg .b64 %rd<5>;\n"
                               "ld.param.u64 %rd1, [cableway_spin_param_0];\nmov.u64 %rd2, %globaltimer;\n"
                               "$L__AGAIN:\nmov.u64 %rd3, %globaltimer;\nsub.s64 %rd4, %rd3, %rd2;\n"
                               "setp.lt.u64 %p1, %rd4, %rd1;\n@%p1 bra $L__AGAIN;\nret;\n}\n";

static void *spin_function;
static unsigned long long spin_nanoseconds;

static void spin_load(double microseconds)
{
    void *module;
    spin_nanoseconds = (unsigned long long)(1000 * microseconds);
    if (spin_nanoseconds == 0)
        return;
    if (((int (*)(void **, const void *))driver("cuModuleLoadData"))(&module, spin_ptx) != 0 ||
        ((int (*)(void **, void *, const char *))driver("cuModuleGetFunction"))(&spin_function, module,
                                                                                "cableway_spin") != 0)
        give_up("the kernel cannot be loaded");
}

/* Adds the kernel to a stream, if there is one. */
static void spin(void *stream)
{
    typedef int launch(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **,
                       void **);
    void *arguments[] = {&spin_nanoseconds};
    static launch *function;
    if (spin_nanoseconds == 0)
        return;
    if (function == NULL)
        function = (launch *)driver("cuLaunchKernel");
    if (function(spin_function, 1, 1, 1, 512, 1, 1, 0, stream, arguments, NULL) != 0)
        give_up("the kernel cannot be launched");
}
