"""Common words by language, to tell apart the languages that share a script.

Function words and the most frequent verbs: facts about the languages, no corpus of anyone's.
"""

from __future__ import annotations

__all__ = ["COMMON"]

_WORDS = {
    "en": "the of and to in is it that was for on are as with his they at be this have from or"
    " had by but not what all were we when your can said there an each which she he do how their"
    " if will up other about out many then them these so some her would make like him into has"
    " look two more write go see no way could people my than first been who its now find did get"
    " come made may part over new after most also where much our i you me very just because while"
    " should such only every never always does both through between any us it's don't hello world"
    " here again sentence letter english word words those own same upon being am",
    "de": "der die das und ist nicht ich du er sie es wir ihr ein eine einen einem einer eines den"
    " dem des zu mit auf für von im in an am als auch wie aber oder wenn dass daß sich war sind"
    " hat haben wird werden kann können nur noch nach bei aus um über so man sehr durch mehr"
    " schon vor diese dieser dieses mein dein sein ihre zum zur immer wo was hier doch",
    "fr": "le la les un une des de du et est en que qui dans pour pas sur avec il elle nous vous"
    " ils elles je tu ce cette ces se sa son ses au aux par plus ne mais ou où comme tout bien"
    " sont être avoir été leur leurs on y si très sans même fait c'est d'un d'une qu'il j'ai"
    " l'eau monde bonjour merci aussi deux peut votre notre mon ma mes",
    "es": "el la los las un una unos unas de del y es en que no por para con se lo al su sus como"
    " más pero o si mi mis tu yo él ella nosotros ellos ser está están son fue era hay muy todo"
    " también cuando donde sobre entre hasta desde este esta estos estas ese eso porque sin ya"
    " me te nos le les tiene hacer puede día vida mundo hola gracias años cada",
    "pt": "o a os as um uma de do da dos das e é em no na nos nas que não por para com se ao à mais"
    " mas ou como seu sua seus suas eu ele ela nós eles ser está são foi era há muito também"
    " quando onde sobre entre até este esta isso porque sem já me te lhe tem fazer pode dia vida"
    " mundo olá obrigado você pelo pela num numa cada ainda",
    "it": "il lo la i gli le un uno una di del della dei delle e è in che non per con si al alla su"
    " come più ma o se mi io lui lei noi loro essere sono era ha hanno molto tutto anche quando"
    " dove tra fino questo questa questi perché senza già ti ci vi suo sua fare può giorno vita"
    " mondo ciao grazie nel nella dal dalla sul ogni",
    "nl": "de het een en van in is dat op te zijn met voor niet aan er om ook als dan maar bij of"
    " uit nog naar door over ze zij hij ik je jij wij we hun haar mijn deze dit die was heeft"
    " hebben wordt worden kan kunnen veel meer wel geen al tot moet waar hoe wat heel",
    "sv": "och att det som en ett är av för på med den till inte om har de i från vi han hon jag du"
    " ska kan men så var när eller nu vad min din sin mycket alla man här där efter vid också"
    " mot under över utan bara denna detta dessa blir blev finns ett mig dig",
    "da": "og at det som en et er af for på med den til ikke om har de i fra vi han hun jeg du skal"
    " kan men så var når eller nu hvad min din sin meget alle man her der efter ved også mod"
    " under over uden kun denne dette disse bliver blev findes mig dig være noget hvor",
    "no": "og at det som en et er av for på med den til ikke om har de i fra vi han hun jeg du skal"
    " kan men så var når eller nå hva min din sin mye alle man her der etter ved også mot under"
    " over uten bare denne dette disse blir ble finnes meg deg være noe hvor",
    "fi": "ja on ei se että hän minä sinä me te he oli olla ovat mutta tai kun niin kuin joka mikä"
    " tämä tuo nämä myös vain jos sen hänen minun sinun meidän kanssa mukaan jälkeen ennen"
    " hyvin paljon kaikki nyt sitten vielä jo voi siitä tässä siellä koska olen ole ne",
    "pl": "i w na z się nie to jest że do o jak ale od po za przez dla czy co tak ja ty on ona my"
    " wy oni jego jej ich był była było są być może tylko już jeszcze bardzo gdy gdzie który"
    " która które ten ta te tego tym więc albo oraz przed bez pod nad także każdy mój",
    "cs": "a v na se je že to s z do o jak ale od po za pro při by jsem jsi jsou být byl byla bylo"
    " který která které ten ta tato tento také jen už ještě velmi když kde nebo i k ve si není"
    " má mají může před bez pod nad každý já ty on ona my vy oni jeho její",
    "hu": "a az és hogy nem is egy ez azt de van volt mint már csak meg ha vagy még el fel ki be"
    " ami aki ezt minden sok nagyon én te ő mi ti ők lesz lehet kell után alatt között szerint"
    " itt ott amikor mert pedig így úgy nincs",
    "ro": "și şi de la în a cu că pe un o este nu se din pentru mai ce care ca al ale lui sunt dar"
    " sau fost era foarte când unde acest această prin fără după despre între toate tot el ea"
    " noi voi ei eu tu mi te îi le am ai are avea fi poate lume",
    "tr": "ve bir bu da de için ile çok ne o daha gibi kadar ama en var mı mi mu mü değil olarak"
    " olan ben sen biz siz onlar her ki ya sonra önce şey oldu olur olduğu ise veya hem bunu"
    " onun benim senin bizim nasıl nerede neden iyi güzel diye",
    "id": "yang dan di ke dari ini itu dengan untuk tidak adalah pada dalam akan oleh ada saya kamu"
    " dia kami kita mereka bisa sudah juga atau karena seperti lebih sangat hanya telah dapat"
    " sebuah seorang para kepada jika ketika apa siapa bagaimana banyak setiap agar",
    "vi": "và của là có không được cho một những các trong với này đã để người khi ra ở cũng như"
    " thì mà đó nhưng về tôi bạn anh chị em nó họ chúng ta rất nhiều hơn từ vào đến bởi vì nếu"
    " hoặc sẽ đang lại nên theo còn ai gì",
    "sw": "na ya wa kwa ni katika la za cha kuwa hii hiyo huo lakini pia au kama si yake wake yao"
    " wao mimi wewe yeye sisi nyinyi watu mtu siku sana bila baada kabla kila ambayo ambaye"
    " hivyo hapa huko ndiyo hapana vya kutoka hadi wote yote alikuwa ilikuwa nyumba maji dunia",
    "ru": "и в не на я что тот быть с он а весь это как она по но они к у ты из мы за вы так же"
    " от сказать этот который мочь человек о один ещё еще бы такой только себя своё какой когда"
    " уже для вот кто да говорить год мой до или если время нет был была было были есть его её"
    " ее их мне очень где при чтобы можно то во все",
    "uk": "і в не на я що той бути з він а весь це як вона по але вони до у ти ми за ви так же від"
    " цей який могти людина про один ще б такий тільки себе свій коли вже для ось хто та рік мій"
    " або якщо час немає був була було були є його її їх мені дуже де при щоб можна то й зі",
    "bg": "и в не на аз че този да с той а това като тя по но те към от ти ни за вие така же който"
    " може човек един още би само себе си кога вече ето кой година мой или ако време няма беше"
    " бил била било са е го я ги ми много къде при се във със ще до тази тези което която съм",
    "ar": "في من على إلى أن هذا هذه التي الذي ما لا كان كانت هو هي هم نحن أنا أنت عن مع كل بعد قبل"
    " بين حتى إذا لم لن قد أو ثم يكون ذلك تلك هناك عند لكن غير أيضا كما و يا بعض منذ حيث",
    "fa": "و در به از که این را با است آن برای یک هم تا بر های می شود شد بود او ما من تو شما آنها"
    " خود هر اما یا اگر باید نیز چه همه کرد کند دارد دارند هستند نیست پس بین روی بسیار بیشتر ها",
    "ur": "اور کے میں کی ہے سے کا کو پر یہ نے ہیں وہ کہ نہیں تھا تھی تھے ایک بھی ہم آپ میں تم اس ان"
    " جو تو ہو گیا گئی لیے ساتھ بعد کیا کر رہا رہی رہے ہوتا ہوتی بہت سب یا اگر لیکن کوئی اپنے",
    "hi": "के है में की और को से का पर यह हैं नहीं था थी थे लिए भी कि तो ने ही वह एक हो कर गया इस उस हम"
    " आप मैं तुम वे जो या अगर लेकिन बहुत सब कोई अपने साथ बाद क्या रहा रही रहे होता होती करने जब तक",
    "mr": "आहे आणि हे ते तो ती नाही आहेत मध्ये होता होती होते साठी केले केला झाली झाला करून मी तू आम्ही"
    " तुम्ही त्या या हा ही एक पण किंवा जर खूप सर्व आपल्या त्याच्या बरोबर नंतर काय असे म्हणून वर त्यांनी",
    "ne": "छ र हो छन् मा पनि यो त्यो लागि थियो हुन्छ गर्न गरेको भएको छैन गर्ने तथा भने म तिमी हामी उनी"
    " तपाईं एक धेरै सबै आफ्नो पछि के कुनै वा यदि तर जब गर्छ थिए भयो गरे हुन् मेरो नेपाल गर्दछ सँग बाट",
}

COMMON: dict[str, frozenset[str]] = {
    code: frozenset(words.split()) for code, words in _WORDS.items()
}
"""Language code to its common words, case folded."""
