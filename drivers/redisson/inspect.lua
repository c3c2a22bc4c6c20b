-- Returns {remaining milliseconds of the lock KEYS[1], last token in KEYS[2] if that is given, fields and values of the lock, the text
-- about its holder in the key ARGV[1] or ''}.
local text = redis.pcall('GET', ARGV[1])
if type(text) ~= 'string' then text = '' end
return {redis.call('PTTL', KEYS[1]), KEYS[2] and redis.call('GET', KEYS[2]) or '', redis.call('HGETALL', KEYS[1]), text}
