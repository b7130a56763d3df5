/*
 * Results of the C++ interface: a value, or an errno with the text of adit_error_message().
 *
 * Invariant: a Result has either its value or an error number above zero. The text is copied when
 * the error occurs, so later calls don't change it.
 */
#ifndef ADIT_RESULT_HPP
#define ADIT_RESULT_HPP

#include "../adit.h"

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <type_traits>
#include <utility>

namespace adit {

/* Error codes of Adit: errnos. They compare with std::errc:
 * `result.error() == std::errc::no_such_file_or_directory`. */
class Category final : public std::error_category {
public:
    const char *name() const noexcept override { return "adit"; }

    std::string message(int number) const override
    {
        return std::generic_category().message(number);
    }

    std::error_condition default_error_condition(int number) const noexcept override
    {
        return {number, std::generic_category()};
    }
};

inline const std::error_category &category() noexcept
{
    static const Category category;
    return category;
}

/* An errno and its text, or none. */
class Fault {
public:
    Fault() noexcept = default;

    Fault(int number, const char *text) noexcept : number_(number)
    {
        try_to_keep(text);
    }

    /* Of a negative result of adit.h: the last failure of this thread. */
    static Fault of(std::int64_t result) noexcept
    {
        return Fault(static_cast<int>(-result), adit_error_message());
    }

    int number() const noexcept { return number_; }
    std::error_code code() const noexcept { return {number_, category()}; }

    /* Like "open /db/CURRENT: No such file or directory (ENOENT)"; "" without an error. */
    std::string message() const
    {
        if (text_ != nullptr)
            return *text_;
        return number_ == 0 ? std::string() : code().message();
    }

    std::shared_ptr<const std::string> text() const noexcept { return text_; }

private:
    void try_to_keep(const char *text) noexcept
    {
        /* Without memory, the number has to do. */
#ifdef __cpp_exceptions
        try {
            text_ = std::make_shared<const std::string>(text);
        } catch (const std::bad_alloc &) {
        }
#else
        text_ = std::make_shared<const std::string>(text);
#endif
    }

    int number_ = 0;
    std::shared_ptr<const std::string> text_;
};

/* What value() throws. code() has the errno, what() Adit's text. */
class Error : public std::system_error {
public:
    explicit Error(const Fault &fault) : std::system_error(fault.code()), text_(fault.text()) {}

    const char *what() const noexcept override
    {
        return text_ != nullptr ? text_->c_str() : std::system_error::what();
    }

private:
    std::shared_ptr<const std::string> text_;
};

namespace detail {

[[noreturn]] inline void raise(const Fault &fault)
{
#ifdef __cpp_exceptions
    throw Error(fault);
#else
    std::fprintf(stderr, "adit: value() of an error: %s\n", fault.message().c_str());
    std::abort();
#endif
}

} // namespace detail

/* What Result<T> and Result<void> have in common. */
class [[nodiscard]] Outcome {
public:
    bool ok() const noexcept { return fault_.number() == 0; }
    explicit operator bool() const noexcept { return ok(); }

    /* Zero if it is ok. */
    std::error_code error() const noexcept { return fault_.code(); }
    int error_number() const noexcept { return fault_.number(); }

    /* Adit's text about the error; "" if it is ok. */
    std::string message() const { return fault_.message(); }

    const Fault &fault() const noexcept { return fault_; }

protected:
    Outcome() noexcept = default;
    explicit Outcome(Fault fault) noexcept : fault_(std::move(fault)) {}

    void require() const
    {
        if (!ok())
            detail::raise(fault_);
    }

private:
    Fault fault_;
};

/* A T, or an error. */
template <class T>
class [[nodiscard]] Result : public Outcome {
public:
    Result(T value) : value_(std::move(value)) {}
    Result(Fault fault) noexcept : Outcome(std::move(fault)) {}

    /* The value; throws adit::Error if there is none. */
    T &value() &
    {
        require();
        return *value_;
    }

    const T &value() const &
    {
        require();
        return *value_;
    }

    T value() &&
    {
        require();
        return *std::move(value_);
    }

    template <class U>
    T value_or(U &&other) const &
    {
        return value_ ? *value_ : static_cast<T>(std::forward<U>(other));
    }

    template <class U>
    T value_or(U &&other) &&
    {
        return value_ ? *std::move(value_) : static_cast<T>(std::forward<U>(other));
    }

private:
    std::optional<T> value_;
};

/* Success, or an error. */
template <>
class [[nodiscard]] Result<void> : public Outcome {
public:
    Result() noexcept = default;
    Result(Fault fault) noexcept : Outcome(std::move(fault)) {}

    /* Throws adit::Error if it is one. */
    void value() const { require(); }
};

/* A zero-terminated string that is only passed on. A std::string with a zero inside is EINVAL. */
class Text {
public:
    Text(const char *text) noexcept : text_(text) {}

    Text(const std::string &text) noexcept
        : text_(text.find('\0') == std::string::npos ? text.c_str() : nullptr)
    {
    }

    const char *get() const noexcept { return text_; }

private:
    const char *text_;
};

namespace detail {

/* The result of a function of adit.h, as a T. */
template <class T, class Number>
Result<T> to_result(Number number)
{
    if (number < 0)
        return Fault::of(number);
    if constexpr (std::is_void_v<T>)
        return {};
    else
        return static_cast<T>(number);
}

/* A volume that is closed by the last of its handles. */
struct Core {
    adit_volume *volume = nullptr;
    std::shared_ptr<Core> parent; /* of a handle that acts for a user */

    Core(adit_volume *opened, std::shared_ptr<Core> of) noexcept
        : volume(opened), parent(std::move(of))
    {
    }

    Core(const Core &) = delete;
    Core &operator=(const Core &) = delete;

    ~Core()
    {
        if (volume != nullptr)
            adit_close_volume(volume);
    }
};

using CoreReference = std::shared_ptr<Core>;

inline adit_volume *volume_of(const CoreReference &core) noexcept
{
    return core != nullptr ? core->volume : nullptr;
}

/* A handle of adit.h and the volume that it belongs to. */
template <class T, int (*Close)(T *)>
class Owned {
public:
    Owned() noexcept = default;
    Owned(T *raw, CoreReference core) noexcept : raw_(raw), core_(std::move(core)) {}

    Owned(Owned &&other) noexcept
        : raw_(std::exchange(other.raw_, nullptr)), core_(std::move(other.core_))
    {
    }

    Owned &operator=(Owned &&other) noexcept
    {
        if (this != &other) {
            release();
            raw_ = std::exchange(other.raw_, nullptr);
            core_ = std::move(other.core_);
        }
        return *this;
    }

    ~Owned() { release(); }

    T *raw() const noexcept { return raw_; }
    const CoreReference &core() const noexcept { return core_; }

    Result<void> close()
    {
        const int closed = Close(std::exchange(raw_, nullptr));
        Result<void> result = to_result<void>(closed);
        core_.reset();
        return result;
    }

private:
    void release() noexcept
    {
        if (raw_ != nullptr)
            Close(std::exchange(raw_, nullptr));
        core_.reset();
    }

    T *raw_ = nullptr;
    CoreReference core_;
};

} // namespace detail
} // namespace adit

#endif /* ADIT_RESULT_HPP */
